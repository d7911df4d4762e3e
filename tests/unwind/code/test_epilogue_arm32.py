"""Rules read off arm32 code. The words are what GCC and glibc have; what they do is in the comments."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.unwind.arch.arm32 import ARCH
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.epilogue import Dead, read_prologue, walk_to_return

START = 0x1000
R7, R11, SP = 7, 11, 13


def reader(code: bytes) -> object:
    def read(vaddr: int, size: int) -> bytes:
        at = vaddr - START
        return code[at : at + size] if at >= 0 else b""

    return read


def arm(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def thumb(*halves: int) -> bytes:
    return struct.pack(f"<{len(halves)}H", *halves)


def walk(code: bytes, at: int = 0) -> UnwindRow | Dead:
    return walk_to_return(ARCH, reader(code), START + at, frozenset().__contains__)  # type: ignore[arg-type]


def location(row: UnwindRow | Dead) -> tuple[int, int, int | None]:
    """(CFA's register, its offset, where the return address lies from the CFA on; None: in lr)."""
    assert isinstance(row, UnwindRow)
    rule = row.return_rule
    return row.cfa_register, row.cfa_offset, None if rule is None else rule.offset


# push {r4, lr}; sub sp, #8; bl; add sp, #8; pop {r4, pc}
PUSHED = arm(0xE92D4010, 0xE24DD008, 0xEB000000, 0xE28DD008, 0xE8BD8010)
# push {r4, lr}; sub sp, #24; bl; add sp, #24; pop {r4, pc}
PUSHED_T32 = thumb(0xB510, 0xB086, 0xF000, 0xF800, 0xB006, 0xBD10)
# sub sp, #8; str lr, [sp, #4]; bl; ldr lr, [sp, #4]; add sp, #8; bx lr
STORED = arm(0xE24DD008, 0xE58DE004, 0xEB000000, 0xE59DE004, 0xE28DD008, 0xE12FFF1E)


@pytest.mark.parametrize(
    ("code", "at", "expected"),
    [
        *((PUSHED, 4 * i, (SP, cfa, -4)) for i, cfa in enumerate((8, 16, 16, 8), 1)),
        (PUSHED, 0, (SP, 0, None)),
        *((PUSHED_T32, 2 * i, (SP, cfa, -4)) for i, cfa in ((1, 8), (2, 32), (4, 32), (5, 8))),
        (PUSHED_T32, 0, (SP, 0, None)),
        (STORED, 4, (SP, 8, None)),  # lr is not stored yet
        (STORED, 8, (SP, 8, -4)),
        # sub sp, sp, r1; bl; sub sp, r11, #4; pop {r11, pc}: the stack pointer comes back from the frame pointer
        (arm(0xE04DD001, 0xEB000000, 0xE24BD004, 0xE8BD8800), 0, (R11, 4, -4)),
        # popcc {r8}; bcc to the bx at the end; nop; nop; pop {r8}; bx lr (glibc's memcpy): both under one condition
        (arm(0x349D8004, 0x3A000002, 0xE1A00000, 0xE1A00000, 0xE49D8004, 0xE12FFF1E), 0, (SP, 4, None)),
        # tbb [pc, r1]; (1, 1, …); pop {r4, pc} one halfword behind the table's start: a switch, its first case
        (thumb(0xE8DF, 0xF001, 0x0101, 0xBD10), 0, (SP, 8, -4)),
        (arm(0xE8BD4010, 0xE12FFF13), 0, (SP, 8, -4)),  # pop {r4, lr}; bx r3
    ],
)
def test_where_the_return_address_is(code: bytes, at: int, expected: tuple[int, int, int | None]) -> None:
    assert location(walk(code, at)) == expected


def test_computed_goto_is_not_a_tail_call() -> None:
    assert isinstance(walk(thumb(0x4718, 0, 0, 0)), Dead)  # bx r3


def test_what_follows_a_call_that_does_not_return_is_another_function() -> None:
    assert isinstance(walk(arm(0xEB000000, 0xE92D4010, 0xE8BD8010)), Dead)
    assert isinstance(walk(arm(0xEB000000, 0xE12FFF1E)), Dead)


def test_prologue_where_no_return_is_ahead() -> None:
    # push {r4, r7, lr}; add r7, sp, #4; sub sp, #16; bl; udf
    code = thumb(*[0xBF00] * 32, 0xB590, 0xAF01, 0xB084, 0xF000, 0xF800, 0xDE00, 0)
    row = read_prologue(ARCH, reader(code), START + 64 + 10)  # type: ignore[arg-type]
    assert location(row or Dead.NO_RETURN) == (SP, 28, -4)
    assert row is not None
    assert RegisterRule(R7, RuleKind.OFFSET, -8) in row.rules


@given(st.binary(max_size=120))
def test_any_bytes_end(code: bytes) -> None:
    walk(code)
    read_prologue(ARCH, reader(code), START + len(code))  # type: ignore[arg-type]
