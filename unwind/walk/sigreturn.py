"""Recognises signal frames by the code of the trampoline that a handler returns to."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch, SignalFrame
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.reader import write_sleb
from memleak_android.unwind.trace import Method

_DW_OP_BREG0 = 0x70
_DW_OP_DEREF = 0x06
_DW_OP_PLUS_UCONST = 0x23


def signal_rows(arch: Arch, module: Module, vaddrs: NDArray[np.uint64]) -> dict[int, UnwindRow]:
    """The rows of the vaddrs at which a signal trampoline begins, by index in vaddrs."""
    return {
        position: _row(arch, frame)
        for frame in arch.signal_frames
        for position in module.code_is(vaddrs, frame.code).tolist()
    }


@cache
def _row(arch: Arch, frame: SignalFrame) -> UnwindRow:
    rules = []
    cfa = b""
    for slot, offset in frame.saved:
        if frame.base:
            address = frame.base + bytes([_DW_OP_PLUS_UCONST]) + write_sleb(offset)  # not negative
        else:
            address = bytes([_DW_OP_BREG0 + arch.dwarf_of(arch.sp)]) + write_sleb(offset)
        if slot == arch.sp:
            cfa = address + bytes([_DW_OP_DEREF])
        else:
            rules.append(RegisterRule(arch.dwarf_of(slot), RuleKind.EXPRESSION, 0, address))
    # interrupted code was not called: it resumes at its pc, and its link register is an ordinary register
    back = arch.dwarf_of(arch.pc)
    return UnwindRow(-1, 0, cfa, tuple(sorted(rules)), back, True, Method.SIGNAL)
