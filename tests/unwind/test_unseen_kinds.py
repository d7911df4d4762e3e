"""Kinds of code and of files that real devices have and the captured cases do not, each built by hand."""

from __future__ import annotations

import struct

import pytest

from memleak_android.unwind.arch.arm64 import ARCH as ARM64
from memleak_android.unwind.epilogue import Dead, walk_to_return
from memleak_android.unwind.rules import RegisterRule, RuleKind, UnwindRow

LR, FP = 30, 29
LDP_X29_X30 = 0xA9407BFD  # ldp x29, x30, [sp]
LDP_X19_X20 = 0xA94153F3  # ldp x19, x20, [sp, #16]
ADD_SP_X12 = 0x8B2C63FF  # add sp, sp, x12
RET = 0xD65F03C0


def walked(*words: int) -> UnwindRow | Dead:
    """What is read off arm64 code that stands at vaddr 0x1000."""
    code = struct.pack(f"<{len(words)}I", *words)
    return walk_to_return(ARM64, lambda vaddr, size: code[vaddr - 0x1000 :][:size], 0x1000, frozenset())


@pytest.mark.parametrize(
    ("constant", "size"),
    [
        ((0xD2846A0C,), 0x2350),  # mov x12, #0x2350
        ((0xD28B000C, 0xF2A0002C), 0x15800),  # mov x12, #0x5800; movk x12, #1, lsl #16
    ],
)
def test_an_arm64_frame_that_is_too_large_for_an_immediate(constant: tuple[int, ...], size: int) -> None:
    """How GCC ends functions with more than 4 KiB of locals."""
    row = walked(*constant, LDP_X29_X30, LDP_X19_X20, ADD_SP_X12, RET)
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
    assert isinstance(walked(0xD2846A0C, between, LDP_X29_X30, ADD_SP_X12, RET), Dead)
