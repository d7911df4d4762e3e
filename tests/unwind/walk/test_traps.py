"""Ways in which unwinders go wrong on real stacks, each on the smallest stack that has it.

The peers named are AOSP's libunwindstack, elfutils' libdw and perf; what they do was read in their sources and seen on
recordings. Captured stacks of the same kinds are in test_captured.py.
"""

import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from memleak_android.host.symbols.names_in_file import FunctionNames, FunctionOffset
from memleak_android.unwind import Method, Module, TraceEnd
from memleak_android.unwind.snapshot.folder import SnapshotFrame
from tests.support.builders.cfi_assembler import Cie, eh_frame_hdr, offset, op
from tests.support.builders.small_library import (
    ARM32,
    ARM64,
    BASE,
    ENTRY,
    FUNCTION,
    STACK,
    X86_64,
    address,
    cfi,
    library,
    placed,
    unwind,
)
from tests.unwind.fuzz.elf_container import (
    PT_GNU_EH_FRAME,
    SHT_STRTAB,
    SHT_SYMTAB,
    Part,
    section_offset,
    write_elf,
)

END = [op(0x07, 16)]  # x86_64: the return address is undefined
SAVES_LINK = {ARM64: [op(0x0E, 16), offset(30, 1)], ARM32: [op(0x0E, 8), offset(14, 1)]}
BL = struct.pack("<II", 0, 0x94000001)  # arm64: its return address is 8 bytes behind a function's start


def pcs(frames: list[SnapshotFrame]) -> list[int]:
    return [frame.pc for frame in frames]


def with_first_load_at(file: bytes, vaddr: int, *, wide: bool) -> bytes:
    """The same file with p_vaddr of its PT_LOAD changed: its load bias."""
    at = 64 + 16 if wide else 52 + 8
    return file[:at] + vaddr.to_bytes(8 if wide else 4, "little") + file[at + (8 if wide else 4) :]


def test_mini_debug_info_speaks_of_the_outer_files_addresses(tmp_path: Path) -> None:
    """On arm32 and in oat files .debug_frame inside xz is the only CFI; the inner file's own bias means nothing."""
    bias = 0x8000

    def outer(inner: bytes) -> bytes:
        return write_elf(ARM32, [Part(".text", bytes(3 * FUNCTION), flags=6), Part(".gnu_debugdata", inner)])

    text = section_offset(outer(b"x"), ".text", ARM32)
    plain = Cie(ENTRY[ARM32].initial, data_align=-4, return_register=14)
    frame, _ = cfi(plain, [SAVES_LINK[ARM32], [op(0x07, 14)]], text + bias, 0, is_eh=False)
    inner = with_first_load_at(write_elf(ARM32, [Part(".debug_frame", frame[:-4])]), 0x90000, wide=False)
    file = with_first_load_at(outer(lzma.compress(inner)), bias, wide=False)
    first, second = (address(file, ARM32, i) for i in range(2))
    frames, end = unwind(tmp_path, ARM32, file, {"pc": first}, [7, second])
    assert pcs(frames) == [first, second] and end is TraceEnd.ROOT
    assert frames[1].method is Method.DEBUGDATA and frames[0].rel_pc == first - BASE + bias


def test_three_biases(tmp_path: Path) -> None:
    """p_vaddr - p_offset of the code, sh_addr - sh_offset of .eh_frame, and the address of .eh_frame_hdr all differ."""
    bias, frame_at, hdr_at = 0x8000, 0x100000, 0x300000

    def parts(offset: Callable[[str], int]) -> list[Part]:
        frame, fdes = cfi(ENTRY[ARM64], [SAVES_LINK[ARM64], [op(0x07, 30)]], offset(".text") + bias, frame_at)
        return [
            Part(".text", bytes(2 * FUNCTION), flags=6),
            Part(".eh_frame", frame, vaddr=frame_at),
            Part(
                ".eh_frame_hdr", eh_frame_hdr(hdr_at, frame_at, fdes), segment=PT_GNU_EH_FRAME, vaddr=hdr_at
            ),
        ]

    file = with_first_load_at(placed(ARM64, parts), bias, wide=True)
    first, second = (address(file, ARM64, i) for i in range(2))
    frames, end = unwind(tmp_path, ARM64, file, {"pc": first, "x0": 0}, [7, second])
    assert pcs(frames) == [first, second] and end is TraceEnd.ROOT
    assert frames[0].rel_pc == first - BASE + bias


@pytest.mark.parametrize("mask", [None, 0x007FFF8000000000, 0])
def test_only_signed_return_addresses_lose_bits(tmp_path: Path, mask: int | None) -> None:
    """DW_CFA_AARCH64_negate_ra_state says which; libdw ignores it, framehop masks every one. Mask 0: none does."""
    signature = 0x0055_0080_0000_0000
    file = library(ARM64, [[op(0x2D), *SAVES_LINK[ARM64]], SAVES_LINK[ARM64], [op(0x07, 30)]])
    first, second, last = (address(file, ARM64, i) for i in range(3))
    stack = [7, second | signature, 7, last | signature]
    frames, end = unwind(tmp_path, ARM64, file, {"pc": first, "x0": 0}, stack, signature_mask=mask)
    expected = [first, second | signature] if mask == 0 else [first, second, last | signature]
    assert pcs(frames) == expected and end is TraceEnd.NO_MAPPING


def test_undefined_is_the_end_and_no_rule_is_a_leaf(tmp_path: Path) -> None:
    """A return address without a rule is in the link register; frames that lead to themselves end."""
    file = library(ARM64, [[], [op(0x07, 30)], SAVES_LINK[ARM64]])
    leaf, last, _ = (address(file, ARM64, i) for i in range(3))
    frames, end = unwind(tmp_path, ARM64, file, {"pc": leaf, "lr": last}, [7])
    assert pcs(frames) == [leaf, last] and end is TraceEnd.ROOT
    frames, end = unwind(tmp_path, ARM64, file, {"pc": leaf, "lr": leaf}, [7])
    assert pcs(frames) == [leaf] and end is TraceEnd.NO_PROGRESS
    # A caller cannot keep its link register, whatever its CFA does.
    rising = library(ARM64, [[], [op(0x0E, 16)]])
    leaf, caller = (address(rising, ARM64, i) for i in range(2))
    frames, end = unwind(tmp_path, ARM64, rising, {"pc": leaf, "lr": caller}, [7] * 64)
    assert pcs(frames) == [leaf, caller] and end is TraceEnd.NO_PROGRESS
    looping = library(X86_64, [[op(0x0C, 6, 16)]])
    here = address(looping, X86_64, 0)
    frames, end = unwind(tmp_path, X86_64, looping, {"rip": here, "rbp": STACK}, [STACK, here])
    assert pcs(frames) == [here, here] and end is TraceEnd.NO_PROGRESS


@pytest.mark.parametrize("lie", ["count 0", "no table", "wrong entries", "zero length"])
def test_eh_frame_hdr_is_never_the_last_word(lie: str) -> None:
    """The section is walked instead; an FDE of no length leaves the address to the next source."""
    programs = [[op(0x0E, 16 + 16 * i)] for i in range(3)]
    text = section_offset(library(X86_64, programs), ".text", X86_64)
    plain = Cie(ENTRY[X86_64].initial)
    frame, _ = cfi(plain, [[op(0x0E, 80)]] * 3, text, 0, is_eh=False, word="<Q")
    inner = Part(".gnu_debugdata", lzma.compress(write_elf(X86_64, [Part(".debug_frame", frame[:-4])])))
    file = bytearray(library(X86_64, programs, inner))
    hdr, eh = (section_offset(bytes(file), name, X86_64) for name in (".eh_frame_hdr", ".eh_frame"))
    if lie == "count 0":
        file[hdr + 8 : hdr + 12] = bytes(4)
    elif lie == "no table":
        file[hdr + 2 : hdr + 4] = b"\xff\xff"
    elif lie == "wrong entries":
        file[hdr + 24 : hdr + 28] = file[hdr + 16 : hdr + 20]  # function 1's FDE: that of function 0
    else:
        second = hdr + struct.unpack_from("<i", file, hdr + 24)[0]
        assert eh < second < len(file) and struct.unpack_from("<I", file, second + 12)[0] == FUNCTION
        struct.pack_into("<I", file, second + 12, 0)
    row = Module.from_bytes(bytes(file)).table.row_at(text + FUNCTION + 8)
    assert row is not None
    wanted = (80, Method.DEBUGDATA) if lie == "zero length" else (32, Method.EH_FRAME)
    assert (row.cfa_offset, row.method) == wanted


@pytest.mark.parametrize("what", ["no file", "no ELF", "another machine", "no mapping"])
def test_a_frame_whose_file_is_missing_stays(tmp_path: Path, what: str) -> None:
    """Its position counts from its mapping; then one step by the link register, which must follow a call."""
    good = library(ARM64, [[op(0x07, 30)]], code=BL)
    (tmp_path / "b.so").write_bytes(good)
    file = {"no ELF": b"no ELF file", "another machine": library(X86_64, [END])}.get(what)
    maps = f"{BASE + 0x20000:x}-{BASE + 0x21000:x} r-xp 0 0:0 0 /b.so\n"
    if what != "no mapping":
        maps = f"{BASE:x}-{BASE + 0x10000:x} r-xp 0 0:0 0 /a.so\n" + maps
    pc, link = BASE + 0x120, address(good, ARM64, 0) + 0x20000
    frames, end = unwind(tmp_path, ARM64, file, {"pc": pc, "lr": link}, [7, 7], maps=maps)
    assert pcs(frames) == [pc, link] and end is TraceEnd.ROOT
    assert frames[1].method is Method.LR
    assert frames[0].rel_pc == (pc if what == "no mapping" else 0x120)
    frames, end = unwind(tmp_path, ARM64, file, {"pc": pc, "lr": link + 4}, [7, 7], maps=maps)
    assert pcs(frames) == [pc]  # what stands there follows no call
    assert end is (TraceEnd.NO_MAPPING if what == "no mapping" else TraceEnd.NO_UNWIND_ROW)


def named(functions: dict[str, int], *more: Part) -> bytes:
    """An x86_64 file with functions of 16 bytes at these vaddrs."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in functions)
    rows = ((names.index(name.encode()), 2, 0, 1, vaddr, 16) for name, vaddr in functions.items())
    table = bytes(24) + b"".join(struct.pack("<IBBHQQ", *row) for row in rows)
    parts = [Part(".symtab", table, SHT_SYMTAB, link=2), Part(".strtab", names, SHT_STRTAB), *more]
    return write_elf(X86_64, parts)


def test_names_come_from_the_packed_table_second() -> None:
    """Other rules of names are in tests/host/symbols/test_symbol_table.py."""
    packed = lzma.compress(named({"again": 0x1000, "inside": 0x3000}))
    file = named({"outer": 0x1000}, Part(".gnu_debugdata", packed))
    found = [FunctionNames(Module.from_bytes(file)).find(vaddr) for vaddr in (0x1006, 0x3001, 0x3010)]
    assert found == [FunctionOffset("outer", 6), FunctionOffset("inside", 1), None]
