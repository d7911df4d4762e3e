"""Recognises signal frames by the code of the trampoline that a handler returns to."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch, SignalFrame
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
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
            address = frame.base + bytes([_DW_OP_PLUS_UCONST]) + _uleb(offset)
        else:
            address = bytes([_DW_OP_BREG0 + arch.dwarf_of_sp]) + _sleb(offset)
        if slot == arch.sp:
            cfa = address + bytes([_DW_OP_DEREF])
        else:
            number = arch.registers[slot].dwarf_number
            assert number is not None
            rules.append(RegisterRule(number, RuleKind.EXPRESSION, 0, address))
    # interrupted code was not called: it resumes at its pc, and its link register is an ordinary register
    back = arch.registers[arch.pc].dwarf_number
    assert back is not None
    return UnwindRow(-1, 0, cfa, tuple(sorted(rules)), back, True, Method.SIGNAL)


def _uleb(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _sleb(value: int) -> bytes:
    encoded = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        if value == (-1 if byte & 0x40 else 0):
            return bytes([*encoded, byte])
        encoded.append(byte | 0x80)
