"""Rules read off arm32 code. The words are what GCC and glibc have; what they do is in the comments."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.unwind.arch.arm32 import ARCH
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.epilogue import Dead, read_prologue, walk_to_return

START = 0x1000
R7, R11, SP, LR = 7, 11, 13, 14


def reader(code: bytes) -> object:
    def read(vaddr: int, size: int) -> bytes:
        at = vaddr - START
        return code[at : at + size] if at >= 0 else b""

    return read


def arm(*words: int, at: int = 0) -> UnwindRow | Dead:
    return walk_to_return(ARCH, reader(struct.pack(f"<{len(words)}I", *words)), START + 4 * at, frozenset())  # type: ignore[arg-type]


def thumb(*halves: int, at: int = 0) -> UnwindRow | Dead:
    """at: halfwords."""
    code = struct.pack(f"<{len(halves)}H", *halves)
    return walk_to_return(ARCH, reader(code), START + 2 * at, frozenset())  # type: ignore[arg-type]


def location(row: UnwindRow | Dead) -> tuple[int, int, int | None]:
    """(CFA's register, its offset, where the return address lies from the CFA on; None: in lr)."""
    assert isinstance(row, UnwindRow)
    rule = row.return_rule
    return row.cfa_register, row.cfa_offset, None if rule is None else rule.offset


PUSHED = (
    0xE92D4010,
    0xE24DD008,
    0xEB000000,
    0xE28DD008,
    0xE8BD8010,
)  # push {r4, lr}; sub sp, #8; bl; add sp, #8; pop {r4, pc}


@pytest.mark.parametrize(
    ("at", "expected"),
    [(0, (SP, 0, None)), (1, (SP, 8, -4)), (2, (SP, 16, -4)), (3, (SP, 16, -4)), (4, (SP, 8, -4))],
)
def test_every_instruction_of_a_function(at: int, expected: tuple[int, int, int | None]) -> None:
    assert location(arm(*PUSHED, at=at)) == expected


@pytest.mark.parametrize(
    ("at", "expected"),
    [(0, (SP, 0, None)), (1, (SP, 8, -4)), (2, (SP, 32, -4)), (4, (SP, 32, -4)), (5, (SP, 8, -4))],
)
def test_the_same_in_t32(at: int, expected: tuple[int, int, int | None]) -> None:
    # push {r4, lr}; sub sp, #24; bl; add sp, #24; pop {r4, pc}
    assert location(thumb(0xB510, 0xB086, 0xF000, 0xF800, 0xB006, 0xBD10, at=at)) == expected


def test_store_that_is_still_ahead() -> None:
    # sub sp, #8; str lr, [sp, #4]; bl; ldr lr, [sp, #4]; add sp, #8; bx lr, from the second on: lr is not stored yet
    words = (0xE24DD008, 0xE58DE004, 0xEB000000, 0xE59DE004, 0xE28DD008, 0xE12FFF1E)
    assert location(arm(*words, at=1)) == (SP, 8, None)
    assert location(arm(*words, at=2)) == (SP, 8, -4)


def test_stack_pointer_that_comes_back_from_the_frame_pointer() -> None:
    # sub sp, sp, r1; bl; sub sp, r11, #4; pop {r11, pc}
    row = arm(0xE04DD001, 0xEB000000, 0xE24BD004, 0xE8BD8800)
    assert location(row) == (R11, 4, -4)


def test_pop_under_a_condition_belongs_to_the_jump_under_the_same() -> None:
    # popcc {r8}; bcc to the bx at the end; nop; nop; pop {r8}; bx lr (glibc's memcpy)
    row = arm(0x349D8004, 0x3A000002, 0xE1A00000, 0xE1A00000, 0xE49D8004, 0xE12FFF1E)
    assert location(row) == (SP, 4, None)


def test_switch_goes_on_at_its_first_case() -> None:
    # tbb [pc, r1]; (1, 1, …); pop {r4, pc} one halfword behind the table's start
    assert location(thumb(0xE8DF, 0xF001, 0x0101, 0xBD10)) == (SP, 8, -4)


def test_computed_goto_is_not_a_tail_call() -> None:
    assert isinstance(thumb(0x4718, 0, 0, 0), Dead)  # bx r3
    # pop {r4, lr}; bx r3
    assert location(arm(0xE8BD4010, 0xE12FFF13)) == (SP, 8, -4)


def test_what_follows_a_call_that_does_not_return_is_another_function() -> None:
    assert isinstance(arm(0xEB000000, 0xE92D4010, 0xE8BD8010), Dead)
    assert isinstance(arm(0xEB000000, 0xE12FFF1E), Dead)


def test_prologue_where_no_return_is_ahead() -> None:
    # push {r4, r7, lr}; add r7, sp, #4; sub sp, #16; bl; udf
    before = [0xBF00] * 32
    code = struct.pack("<39H", *before, 0xB590, 0xAF01, 0xB084, 0xF000, 0xF800, 0xDE00, 0)
    row = read_prologue(ARCH, reader(code), START + 64 + 10)  # type: ignore[arg-type]
    assert location(row or Dead.NO_RETURN) == (SP, 28, -4)
    assert row is not None
    assert RegisterRule(R7, RuleKind.OFFSET, -8) in row.rules


@given(st.binary(max_size=120))
def test_any_bytes_end(code: bytes) -> None:
    walk_to_return(ARCH, reader(code), START, frozenset())  # type: ignore[arg-type]
    read_prologue(ARCH, reader(code), START + len(code))  # type: ignore[arg-type]
