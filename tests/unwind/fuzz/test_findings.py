"""Findings of the fuzzer, each as the smallest input that shows it."""

import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.symbols.names_in_file import soname
from memleak_android.unwind import Module, UnwindError
from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.cfi.ahead import CfiAhead
from memleak_android.unwind.cfi.compiled import compile_table
from memleak_android.unwind.cfi.program import decode
from memleak_android.unwind.cfi.section import CfiSection
from memleak_android.unwind.cfi.sources import parse_hdr
from memleak_android.unwind.cfi.table import CfiSource, UnwindTable
from memleak_android.unwind.trace import Method
from tests.support.builders.cfi_assembler import CfiAssembler, Cie, advance, eh_frame_hdr, offset, op
from tests.unwind.fuzz import seeds
from tests.unwind.fuzz.elf_container import section_offset

CIE = Cie(op(0x0C, 7, 8) + offset(16, 1))
ROOT = Path(__file__).resolve().parents[3]


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def section_of(assembler: CfiAssembler, vaddr: int = 0x9000, word_bytes: int = 8) -> CfiSection:
    method = Method.EH_FRAME if assembler.is_eh else Method.DEBUG_FRAME
    return CfiSection(bytes(assembler.data), vaddr, method, word_bytes, is_eh=assembler.is_eh)


def test_rows_of_a_thousand_registers_cost_what_they_change() -> None:
    """130 KB of instructions made 2 GB of rows when each held all of its rules."""
    script = (
        "from tests.unwind.fuzz.test_findings import thousand_registers\n"
        "thousand_registers(); print(open('/proc/self/status').read())"  # getrusage() has the parent's peak
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    peak_kb = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("VmHWM:"))
    assert int(peak_kb) < 400_000  # the interpreter and NumPy included


def thousand_registers() -> None:
    assembler = CfiAssembler()
    program = [op(0x07, n) for n in range(1000)] + [advance(1) + op(0x08, 5)] * 30_000
    at = assembler.fde(assembler.cie(CIE), u64(0x1000), u64(1 << 20), program)
    section = section_of(assembler)
    fde = section.fde(at)
    decoded = decode(section, fde)
    assert len(decoded.starts) == 30_001
    assert len(decoded.row(30_000, fde.cie, Method.EH_FRAME).rules) == 1000


@pytest.mark.parametrize("program", [[op(0x08, 5)] * 70_000, [bytes(1 << 19)]], ids=["rules", "nops"])
def test_programs_without_end_are_malformed(program: list[bytes]) -> None:
    assembler = CfiAssembler()
    at = assembler.fde(assembler.cie(CIE), u64(0x1000), u64(16), program)
    section = section_of(assembler)
    with pytest.raises(UnwindError, match="too many"):
        decode(section, section.fde(at))


def test_a_cie_at_2_to_the_63() -> None:
    """A 64-bit FDE of .debug_frame names a CIE that no signed number can."""
    assembler = CfiAssembler(is_eh=False, wide=True)
    assembler.fde(1 << 63, u64(0x1000), u64(16), [])
    section = section_of(assembler)
    assert len(section.entries().starts) == 0


def test_a_function_that_ends_behind_the_last_address() -> None:
    assembler = CfiAssembler()
    assembler.fde(assembler.cie(CIE), u64(0x1000), u64((1 << 64) - 16), [op(0x0F, b"\0")])
    table = UnwindTable(ARCH, [CfiSource(section_of(assembler), None)])
    compile_table(ARCH, table.sources)
    assert table.row_ids(np.array([0x2000], np.uint64)).tolist() == [-2]


@pytest.mark.parametrize("vaddr", [1 << 63, (1 << 64) - 8])
def test_sections_in_the_upper_half_of_the_addresses(vaddr: int) -> None:
    assembler = CfiAssembler()
    cie = assembler.cie(Cie(CIE.initial, "zR", b"\x1b"))
    for i in range(20):  # enough for reading them as arrays
        assembler.fde(cie, struct.pack("<i", 0x1000 * i), struct.pack("<i", 16), [], augmented=True)
    section = section_of(assembler, vaddr)
    starts = sorted(section.fde(at).start for at in section.entries().offsets.tolist())
    assert starts == section.entries().starts.tolist() and len(starts) == 20
    hdr = eh_frame_hdr(0, 4, [(0x10, 0x20)])
    assert parse_hdr(hdr, vaddr, section) is not None


def test_lengths_of_32_bit_code_are_of_32_bits() -> None:
    """Read one by one a length of -16 was 2**32 - 16, read as arrays 2**64 - 16."""
    assembler = CfiAssembler()
    cie = assembler.cie(Cie(op(0x0C, 13, 0), "zR", b"\x1b", data_align=-4, return_register=14))
    for i in range(20):
        assembler.fde(cie, struct.pack("<i", 0x10 * i), struct.pack("<i", -16), [], augmented=True)
    section = section_of(assembler, word_bytes=4)
    assert set(section.entries().lengths.tolist()) == {(1 << 32) - 16}


def test_compiled_rows_of_a_section_that_is_cut_in_two() -> None:
    """A walk ends at the damage; the search table leads to the functions behind it."""
    assembler = CfiAssembler()
    cie = assembler.cie(CIE)
    fdes = [(s, assembler.fde(cie, u64(s), u64(0x10), [op(0x0E, 24)])) for s in (0x1000, 0x2000, 0x3000)]
    assembler.data[fdes[1][1] : fdes[1][1] + 4] = b"\xf0\xff\xff\x7f"
    section = section_of(assembler, 0x5000)
    hdr = parse_hdr(eh_frame_hdr(0x4000, 0x5000, [(s, 0x5000 + at) for s, at in fdes]), 0x4000, section)
    table = UnwindTable(ARCH, [CfiSource(section, hdr)])
    lazy = table.row_at(0x3004)
    table.compile_with(compile_table(ARCH, table.sources))
    assert lazy is not None and table.row_at(0x3004) == lazy


def test_thousands_of_entries_that_overlap_each_other() -> None:
    """Each reaches to the end of the section: decoded together they could have 100 million rows."""
    size, head = 1 << 16, CfiAssembler()
    head.cie(CIE)
    offsets = range(len(head.data), len(head.data) + 8 * 2048, 8)
    data = bytes(head.data) + b"".join(struct.pack("<II", size - at - 4, at + 4) for at in offsets)
    section = CfiSection(data.ljust(size, b"\0"), 0, Method.EH_FRAME, 8)
    tracemalloc.start()
    CfiAhead(section, [3, 6, 16]).decode(np.array(offsets, np.int64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 29


def test_sixty_four_million_empty_entries() -> None:
    """.debug_frame of zeros: each 4 bytes are an entry of length 0."""
    section = CfiSection(bytes(1 << 26), 0, Method.DEBUG_FRAME, 8, is_eh=False)
    before = time.process_time()
    assert len(section.entries().starts) == 0
    assert time.process_time() - before < 5


def test_millions_of_the_smallest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk stops at its bound, by the compiled engine as without it."""
    monkeypatch.setattr("memleak_android.unwind.cfi.section._ENTRIES_MAX", 1000)
    assembler = CfiAssembler(is_eh=False)
    cie = assembler.cie(CIE)
    for i in range(1500):
        assembler.fde(cie, u64(0x1000 + 16 * i), u64(16), [])
    assert 990 < len(section_of(assembler).entries().starts) <= 1000


def test_a_dynamic_section_at_2_to_the_63() -> None:
    data = bytearray(seeds.elf(seeds.X86_64))
    at = 64 + 56  # the second program header: PT_DYNAMIC
    assert data[at : at + 4] == struct.pack("<I", 2) and soname(Module.from_bytes(bytes(data))) != ""
    data[at + 8 : at + 16] = u64(1 << 63)
    assert soname(Module.from_bytes(bytes(data))) == ""


def test_the_seeds_are_well_formed() -> None:
    """Every table of the seeds is read: damage to unread bytes would test nothing."""
    for machine in (seeds.X86_64, seeds.ARM64, seeds.ARM32, seeds.I386):
        for how in ("plain", "zlib", "zdebug", "xz"):
            data = seeds.elf(machine, seeds.packed(machine, how))
            module = Module.from_bytes(data)
            start = section_offset(data, ".text", machine)
            methods = {module.table.row_at(vaddr) for vaddr in range(start, start + 1000, 8)} - {None}
            found = {row.method for row in methods if row is not None}
            hidden = Method.DEBUGDATA if how == "xz" else Method.DEBUG_FRAME
            assert {Method.EH_FRAME, hidden} <= found, (machine, how, found)
            assert module.build_id == bytes(range(20)).hex()
            assert module.functions(frozenset({b"exit"}))
