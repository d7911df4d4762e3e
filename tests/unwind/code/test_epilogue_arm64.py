"""Rules read off arm64 code, against the CFI that the compiler wrote for the same instructions."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.unwind import Method
from memleak_android.unwind.arch.arm64 import ARCH
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.epilogue import Dead, walk_to_return
from tests.support.gcc import arm64_library

PROGRAM = """
int g(int, int); void h(char *);
int leaf(int a, int b) { return a * b + 3; }
int calls(int x) { return g(x, 1) + g(2, x); }
int buffer(int x) { char b[300]; __builtin_memset(b, x, 300); h(b); return b[x]; }
int loop(int n) { int s = 0; for (int i = 0; i < n; i++) { s += g(i, n); if (s > 100) return g(s, s) + 1; } return s; }
int dynamic(int n) { char *p = __builtin_alloca(n); h(p); return p[0] + g(n, n); }
double floats(double x, double y, int n) { double s = 0; for (int i = 0; i < n; i++) s += x * g(i, i) + y; return s; }
int traps(int n) { switch (n) { case 0: return g(1, 1); case 1: return 7 * g(3, 3); default: __builtin_trap(); } }
int tail(int n) { if (n > 3) g(n, n); return g(n, 2); }
long many(long a, long b, long c, long d, long e, long f, long i, long j)
{ return g(a, b) + g(c, d) + g(e, f) + g(i, j) + a * b * c * d * e * f * i * j; }
"""
LR, FP, SP = 30, 29, 31


def moves_x30(word: int) -> bool:
    """ldp, stp, ldr, str of x30 by the stack pointer."""
    is_pair = word & 0xFE0003E0 == 0xA80003E0 and 30 in (word & 31, word >> 10 & 31)
    return is_pair or word & 0xFFA003FF == 0xF80003FE or word & 0xFF8003FF == 0xF90003FE


def return_location(row: UnwindRow) -> tuple[int, int] | None:
    """Location of the return address, from the base register; None: in x30."""
    rule = next((r for r in row.rules if r.register == LR and r.kind is RuleKind.OFFSET), None)
    return None if rule is None else (row.cfa_register, row.cfa_offset + rule.offset)


@pytest.mark.parametrize(
    "flags",
    [("-O2",), ("-O1", "-fomit-frame-pointer"), ("-O2", "-mbranch-protection=standard")],
    ids=["frame pointer", "without", "signed"],
)
def test_every_instruction_of_compiled_code(tmp_path: Path, flags: tuple[str, ...]) -> None:
    module = arm64_library(tmp_path, PROGRAM, *flags)
    text = module.section(".text")
    assert text is not None
    n = found = 0
    for vaddr in range(text.vaddr, text.vaddr + text.size, 4):
        cfi = module.table.row_at(vaddr)
        if cfi is None:
            continue
        n += 1
        row = walk_to_return(module.arch, module.bytes_at, vaddr, frozenset().__contains__)
        if isinstance(row, Dead):
            continue
        found += 1
        assert row.method is Method.PROLOGUE
        if row.cfa_register != cfi.cfa_register:
            continue
        assert row.cfa_offset == cfi.cfa_offset, hex(vaddr)
        if return_location(row) != return_location(cfi):
            # right after x30 was stored, and between its load and `ret`, it is in both
            assert None in (return_location(row), return_location(cfi)), hex(vaddr)
            before = [
                w for (w,) in struct.iter_unpack("<I", module.bytes_at(max(vaddr - 32, text.vaddr), 32))
            ]
            assert any(moves_x30(word) for word in before), hex(vaddr)
    assert found > 0.9 * n > 100


def walk(*words: int, start: int = 0) -> UnwindRow | Dead:
    code = b"".join(struct.pack("<I", word) for word in words)

    def read(vaddr: int, size: int) -> bytes:
        at = vaddr - 0x1000
        return code[at : at + size] if 0 <= at < len(code) else b""

    return walk_to_return(ARCH, read, 0x1000 + start, frozenset().__contains__)


def test_plt_entry_has_its_return_address_in_x30() -> None:
    # adrp x16, .; ldr x17, [x16, #8]; add x16, x16, #8; br x17
    row = walk(0x90000010, 0xF9400611, 0x91002210, 0xD61F0220)
    assert isinstance(row, UnwindRow)
    assert (row.cfa_register, row.cfa_offset, row.rules) == (SP, 0, ())


def test_epilogue_of_signed_code() -> None:
    # ldp x29, x30, [sp], #32; autiasp; ret
    row = walk(0xA8C27BFD, 0xD50323BF, 0xD65F03C0)
    assert isinstance(row, UnwindRow)
    assert (row.cfa_register, row.cfa_offset, row.is_return_signed) == (SP, 32, True)
    offsets = (RegisterRule(FP, RuleKind.OFFSET, -32), RegisterRule(LR, RuleKind.OFFSET, -24))
    assert row.rules == offsets


def test_what_follows_a_call_that_does_not_return_is_another_function() -> None:
    # bl .; stp x29, x30, [sp, #-16]!; ldp x29, x30, [sp], #16; ret
    assert isinstance(walk(0x94000000, 0xA9BF7BFD, 0xA8C17BFD, 0xD65F03C0), Dead)
    assert isinstance(walk(0x94000000, 0xD65F03C0), Dead)


LDP_X29_X30 = 0xA9407BFD  # ldp x29, x30, [sp]
LDP_X19_X20 = 0xA94153F3  # ldp x19, x20, [sp, #16]
ADD_SP_X12 = 0x8B2C63FF  # add sp, sp, x12
RET = 0xD65F03C0


@pytest.mark.parametrize(
    ("constant", "size"),
    [
        ((0xD2846A0C,), 0x2350),  # mov x12, #0x2350
        ((0xD28B000C, 0xF2A0002C), 0x15800),  # mov x12, #0x5800; movk x12, #1, lsl #16
    ],
)
def test_an_arm64_frame_that_is_too_large_for_an_immediate(constant: tuple[int, ...], size: int) -> None:
    """How GCC ends functions with more than 4 KiB of locals."""
    row = walk(*constant, LDP_X29_X30, LDP_X19_X20, ADD_SP_X12, RET)
    assert isinstance(row, UnwindRow) and row.cfa_offset == size
    assert RegisterRule(LR, RuleKind.OFFSET, 8 - size) in row.rules


@pytest.mark.parametrize(
    "between",
    [
        0xAA0103EC,  # mov x12, x1
        0xF94003EC,  # ldr x12, [sp]
        0xA94033F3,  # ldp x19, x12, [sp]
        0x94000000,  # bl: a call may change it
    ],
)
def test_a_constant_that_was_overwritten_is_not_believed(between: int) -> None:
    assert isinstance(walk(0xD2846A0C, between, LDP_X29_X30, ADD_SP_X12, RET), Dead)


def test_erased_code_says_nothing() -> None:
    assert walk(0, 0, 0) is Dead.USES_FRAME_POINTER


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_any_words_end(words: list[int]) -> None:
    walk(*words)
