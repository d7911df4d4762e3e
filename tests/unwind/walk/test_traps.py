"""Fifteen ways in which unwinders go wrong on real stacks, each on the smallest stack that has it.

The peers named are AOSP's libunwindstack, elfutils' libdw and perf; what they do was read in their sources and seen on
recordings. Captured stacks of the same kinds are in test_corpus.py.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from memleak_android.host.symbols.names_in_file import FunctionNames, soname
from memleak_android.unwind import Method, Module, TraceEnd
from memleak_android.unwind.cfi.rules import DEX_MARK, RuleKind
from memleak_android.unwind.snapshot.folder import SnapshotFrame
from tests.support.builders.cfi_assembler import Cie, advance, block, eh_frame_hdr, offset, op, restore
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
    PT_ARM_EXIDX,
    PT_DYNAMIC,
    PT_GNU_EH_FRAME,
    SHT_DYNAMIC,
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


def test_01_an_interrupted_pc_is_looked_up_where_it_stands(tmp_path: Path) -> None:
    """A signal came at the first instruction of function 1; one byte less is function 0, whose frame is larger.

    libunwindstack reduces it for good (Unwinder.cpp); libdw and we do not.
    """
    file = library(X86_64, [[op(0x0E, 24)], [], []])
    trampoline = op(0x0F, block(b"\x77\x08\x06")) + op(0x10, 16, block(b"\x77\x00"))
    vdso = library(X86_64, [[]], cie=Cie(trampoline, "zRS", b"\x1b"))
    (tmp_path / "b.so").write_bytes(vdso)
    maps = f"{BASE:x}-{BASE + 0x8000:x} r-xp 0 0:0 0 /a.so\n{BASE + 0x8000:x}-{BASE + 0x9000:x} r-xp 0 0:0 0 /b.so\n"
    handler, interrupted, caller = (address(file, X86_64, *where) for where in ((2, 8), (1, 0), (0, 8)))
    returns_to = address(vdso, X86_64, 0, 1) + 0x8000  # a trampoline's rules begin a byte before it
    words = [returns_to, interrupted, STACK + 24, caller, 7, 7, 0]
    frames, end = unwind(tmp_path, X86_64, file, {"rip": handler}, words, maps=maps)
    assert pcs(frames) == [handler, returns_to, interrupted, caller] and end is TraceEnd.ROOT
    assert (frames[2].lookup, frames[3].lookup) == (interrupted, caller - 1)
    assert frames[2].method is Method.SIGNAL


def test_02_a_slot_below_the_stack_pointer_is_dead(tmp_path: Path) -> None:
    """LLVM's epilogues keep the rule of a register that was popped already: it has its caller's value again.

    libunwindstack fails the frame and takes [sp] for a return address.
    """
    file = library(X86_64, [[offset(3, 2)], [op(0x0C, 3, 16)], END])
    first, second, last = (address(file, X86_64, i) for i in range(3))
    frames, end = unwind(tmp_path, X86_64, file, {"rip": first, "rbx": STACK + 8}, [second, 7, last])
    assert pcs(frames) == [first, second, last] and end is TraceEnd.ROOT


def test_03_a_slice_that_ends_is_the_end(tmp_path: Path) -> None:
    """Neither [sp] nor the frame pointer is taken instead, though both look well; perf appends a pc of -1."""
    file = library(X86_64, [[], [op(0x0E, 32)], END])
    first, second, bait = (address(file, X86_64, i) for i in range(3))
    words = [second, bait, STACK + 8]
    frames, end = unwind(tmp_path, X86_64, file, {"rip": first, "rbp": STACK + 8}, words)
    assert pcs(frames) == [first, second] and end is TraceEnd.STACK_TRUNCATED


def with_first_load_at(file: bytes, vaddr: int, *, wide: bool) -> bytes:
    """The same file with p_vaddr of its PT_LOAD changed: its load bias."""
    at = 64 + 16 if wide else 52 + 8
    return file[:at] + vaddr.to_bytes(8 if wide else 4, "little") + file[at + (8 if wide else 4) :]


def test_04_mini_debug_info_speaks_of_the_outer_files_addresses(tmp_path: Path) -> None:
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


def test_05_three_biases(tmp_path: Path) -> None:
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


def test_06_a_library_in_an_apk_begins_where_the_mapping_before_a_hole_does(tmp_path: Path) -> None:
    """rel_pc = pc - map.start + the distance to the ELF's own beginning in the APK, across a ---p hole."""
    offset_in_apk, code_at = 0x5000, 0x1000

    def parts(offset: Callable[[str], int]) -> list[Part]:
        frame, _ = cfi(
            ENTRY[ARM64], [SAVES_LINK[ARM64], [op(0x07, 30)]], offset(".text"), offset(".eh_frame")
        )
        return [
            Part(".pad", bytes(code_at)),
            Part(".text", bytes(2 * FUNCTION), flags=6),
            Part(".eh_frame", frame),
        ]

    file = placed(ARM64, parts)
    start = BASE + 0x4000
    maps = (
        f"{BASE:x}-{BASE + 0x1000:x} r--p {offset_in_apk:x} 0:0 0 /a.so\n"
        f"{BASE + 0x1000:x}-{start:x} ---p 0 0:0 0\n"
        f"{start:x}-{start + 0x1000:x} r-xp {offset_in_apk + code_at:x} 0:0 0 /a.so\n"
    )
    text = section_offset(file, ".text", ARM64)
    first, second = (start - code_at + text + FUNCTION * i + 8 for i in range(2))
    apk = b"PK".ljust(offset_in_apk, b"\0") + file
    frames, end = unwind(tmp_path, ARM64, apk, {"pc": first, "x0": 0}, [7, second], maps=maps)
    assert pcs(frames) == [first, second] and end is TraceEnd.ROOT
    assert [frame.rel_pc for frame in frames] == [text + 8, text + FUNCTION + 4]
    assert frames[0].elf is not None and frames[0].elf.start_offset == offset_in_apk


def test_07_exidx_is_asked_last_and_says_where_stacks_end(tmp_path: Path) -> None:
    """Its entries have no ends, so DWARF goes first; 1 is the end; pc is lr if not popped; vsp may be r7."""
    words = (
        0x80A8B0B0,
        1,
        0x8097A8B0,
        0x80B0B0B0,
        1,
    )  # pop {r4, lr} · end · vsp = r7, pop {r4, lr} · nothing · end

    def parts(offset: Callable[[str], int]) -> list[Part]:
        offsets = [offset(".text") + FUNCTION * i - offset(".ARM.exidx") - 8 * i for i in range(5)]
        index = b"".join(
            struct.pack("<II", at & 0x7FFFFFFF, word) for at, word in zip(offsets, words, strict=True)
        )
        plain = Cie(ENTRY[ARM32].initial, data_align=-4, return_register=14)
        frame, _ = cfi(plain, [None, SAVES_LINK[ARM32]], offset(".text"), 0, is_eh=False)
        code = Part(".text", bytes(5 * FUNCTION), flags=6)
        return [code, Part(".ARM.exidx", index, segment=PT_ARM_EXIDX), Part(".debug_frame", frame[:-4])]

    file = placed(ARM32, parts)
    pops, by_dwarf, by_r7, leaf, last = (address(file, ARM32, i) for i in range(5))
    stack = [0, by_r7, 7, 7, 0, by_dwarf, 7, last]
    frames, end = unwind(tmp_path, ARM32, file, {"pc": leaf, "lr": pops, "r7": STACK + 16}, stack)
    assert pcs(frames) == [leaf, pops, by_r7, by_dwarf, last] and end is TraceEnd.ROOT
    assert [f.method for f in frames[1:]] == [Method.EXIDX, Method.EXIDX, Method.EXIDX, Method.DEBUG_FRAME]


def test_08_thumb_return_addresses_keep_bit_0(tmp_path: Path) -> None:
    """The call before is 4 (bl) or 2 bytes long (blx r0), by its opcode; an interrupted pc has no bit 0."""
    code = bytes(4) + bytes.fromhex("00f002f8") + bytes.fromhex("00bf") + bytes.fromhex("8047")
    file = library(ARM32, [SAVES_LINK[ARM32], SAVES_LINK[ARM32], [op(0x07, 14)]], code=code)
    here, behind_bl, behind_blx = (address(file, ARM32, i, at) for i, at in enumerate((8, 8, 12)))
    stack = [7, behind_bl | 1, 7, behind_blx | 1]
    frames, end = unwind(tmp_path, ARM32, file, {"pc": here}, stack)
    assert pcs(frames) == [here, behind_bl | 1, behind_blx | 1] and end is TraceEnd.ROOT
    assert [frame.lookup for frame in frames] == [here, (behind_bl | 1) - 4, (behind_blx | 1) - 2]


@pytest.mark.parametrize("mask", [None, 0x007FFF8000000000])
def test_09_only_signed_return_addresses_lose_bits(tmp_path: Path, mask: int | None) -> None:
    """DW_CFA_AARCH64_negate_ra_state says which; libdw ignores it, framehop masks every one."""
    signature = 0x0055_0080_0000_0000
    file = library(ARM64, [[op(0x2D), *SAVES_LINK[ARM64]], SAVES_LINK[ARM64], [op(0x07, 30)]])
    first, second, last = (address(file, ARM64, i) for i in range(3))
    stack = [7, second | signature, 7, last | signature]
    frames, end = unwind(tmp_path, ARM64, file, {"pc": first, "x0": 0}, stack, signature_mask=mask)
    assert pcs(frames) == [first, second, last | signature] and end is TraceEnd.NO_MAPPING


def test_10_states_restores_and_factors() -> None:
    """restore_state brings the CFA back, restore the CIE's rule; offset_extended is factored; args_size is legal.

    libunwindstack does not factor 0x05, pyelftools refuses 0x2e.
    """
    program = [
        *(op(0x0E, 48), offset(3, 4), op(0x05, 12, 5), op(0x2E, 16), op(0x0A), advance(8)),
        *(op(0x0C, 6, 16), restore(3), restore(12), offset(16, 9), restore(16), advance(8), op(0x0B)),
    ]
    cie = Cie(ENTRY[X86_64].initial + offset(12, 7), "zR", b"\x1b")
    file = library(X86_64, [program], cie=cie)
    rows = [
        Module.from_bytes(file).table.row_at(section_offset(file, ".text", X86_64) + at) for at in (0, 8, 16)
    ]
    found = [
        row and (row.cfa_register, row.cfa_offset, [(r.register, r.offset) for r in row.rules])
        for row in rows
    ]
    assert found == [
        (7, 48, [(3, -32), (12, -40), (16, -8)]),
        (6, 16, [(12, -56), (16, -8)]),
        (7, 48, [(3, -32), (12, -40), (16, -8)]),
    ]


def test_11_undefined_is_the_end_and_no_rule_is_a_leaf(tmp_path: Path) -> None:
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
def test_12_eh_frame_hdr_is_never_the_last_word(lie: str) -> None:
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


def test_13_the_interpreters_expression_names_a_method_of_its_own(tmp_path: Path) -> None:
    """ART's nterp: DW_OP_const4u 'DEX1', drop, then where the dex pc is: a frame that no CFA belongs to."""
    rule = op(0x16, 22, block(DEX_MARK + b"\x86\x02"))  # val_expression: x22 + 2
    file = library(ARM64, [[*SAVES_LINK[ARM64], rule], [op(0x07, 30)]])
    first, caller = (address(file, ARM64, i) for i in range(2))
    maps = f"{BASE:x}-{BASE + 0x10000:x} r-xp 0 0:0 0 /a.so\n{BASE * 2:x}-{BASE * 2 + 0x1000:x} r--p 0 0:0 0 /x.vdex\n"
    registers = {"pc": first, "x22": BASE * 2 + 0x10}
    frames, end = unwind(tmp_path, ARM64, file, registers, [7, caller], maps=maps)
    assert pcs(frames) == [first, BASE * 2 + 0x12, caller] and end is TraceEnd.ROOT
    assert frames[1].method is Method.DEX and frames[1].mapping is not None
    assert frames[1].mapping.path == "/x.vdex" and frames[1].lookup == BASE * 2 + 0x12
    row = Module.from_bytes(file).table.row_at(first - BASE)
    assert row is not None and row.rules[0].kind is RuleKind.VAL_EXPRESSION


@pytest.mark.parametrize("what", ["no file", "no ELF", "another machine", "no mapping"])
def test_14_a_frame_whose_file_is_missing_stays(tmp_path: Path, what: str) -> None:
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
    frames, _ = unwind(tmp_path, ARM64, file, {"pc": pc, "lr": link + 4}, [7, 7], maps=maps)
    assert pcs(frames) == [pc]  # what stands there follows no call


def test_15_names_come_from_tables_in_any_order() -> None:
    """Symbols without a size name nothing; the packed table comes second; the library is named by DT_SONAME."""

    def table(*symbols: tuple[int, int, int]) -> bytes:
        return bytes(24) + b"".join(
            struct.pack("<IBBHQQ", n, 2, 0, 1, vaddr, size) for n, vaddr, size in symbols
        )

    inner_names = b"\0outer_again\0only_inside\0"
    inner = write_elf(X86_64, [
        Part(".symtab", table((1, 0x1000, 16), (13, 0x3000, 16)), SHT_SYMTAB, link=2),
        Part(".strtab", inner_names, SHT_STRTAB),
    ])  # fmt: skip
    names = b"\0_ZN1a1bEv\0[DEDUPED]\0label\0"

    def parts(offset: Callable[[str], int]) -> list[Part]:
        pairs = ((5, offset(".dynstr")), (10, 16), (14, 1), (0, 0))
        return [
            Part(".symtab", table((11, 0x2000, 16), (21, 0x1004, 0), (1, 0x1000, 16)), SHT_SYMTAB, link=2),
            Part(".strtab", names, SHT_STRTAB),
            Part(".gnu_debugdata", lzma.compress(inner)),
            Part(".dynstr", b"\0libreal.so\0", SHT_STRTAB),
            Part(
                ".dynamic",
                b"".join(struct.pack("<QQ", *pair) for pair in pairs),
                SHT_DYNAMIC,
                segment=PT_DYNAMIC,
            ),
        ]

    file = placed(X86_64, parts)
    found = FunctionNames(memoryview(file))
    locations = [found.find(vaddr) for vaddr in (0x1006, 0x2000, 0x3001, 0x1010)]
    assert [location and (location.function, location.offset) for location in locations] == [
        ("a::b()", 6),
        ("[DEDUPED]", 0),
        ("only_inside", 1),
        None,
    ]
    assert soname(Module.from_bytes(file)) == "libreal.so"
