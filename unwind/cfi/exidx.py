"""The exception index of 32-bit Arm, .ARM.exidx and .ARM.extab, as rows (Arm EHABI32 2023Q3 §6, §7, §10.3).

An entry holds for a whole function: its rows are right between prologue and epilogue, where calls are made.
Registers: DWARF numbers 0 to 15 are r0 to r15. The virtual stack pointer's last value is the CFA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.cfi.section import FdeIndex
from memleak_android.unwind.cfi.table import FunctionRows, malformed
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.reader import read_uleb, write_sleb
from memleak_android.unwind.trace import Method

SP, LR, PC = 13, 14, 15
_CANTUNWIND = 1
_INLINE = 0x8000_0000
_DW_OP_DEREF, _DW_OP_CONSTS, _DW_OP_PLUS, _DW_OP_BREG0 = 0x06, 0x11, 0x22, 0x70


class ExidxSource:
    """Unwind rows of a .ARM.exidx section.

    data: the index, entries of 8 bytes.
    vaddr: the address of the index.
    code_end: the end of the last entry's code.
    read: returns the bytes at a vaddr, for .ARM.extab.
    """

    def __init__(self, data: bytes, vaddr: int, code_end: int, read: Callable[[int, int], bytes]) -> None:
        self._words = np.frombuffer(data, "<u4", len(data) // 8 * 2).reshape(-1, 2)
        self._vaddr = vaddr
        self._code_end = code_end
        self._read = read

    @cached_property
    def _index(self) -> FdeIndex:
        vaddrs = np.arange(len(self._words)) * 8 + self._vaddr
        starts = (vaddrs + _signed31(self._words[:, 0])) & 0xFFFFFFFF
        order = np.argsort(starts, kind="stable")
        is_entry = self._words[order, 0] < _INLINE
        return FdeIndex(starts[order][is_entry].astype(np.uint64), order[is_entry] * 8)

    def indexes(self) -> Iterator[FdeIndex]:
        """The index is the section itself; offsets are those of its entries."""
        yield self._index

    @cached_property
    def _end_of(self) -> dict[int, int]:
        """The end of each entry's code, by entry offset: entries have no length, so the next entry ends them."""
        starts = self._index.starts.tolist()
        ends = [*starts[1:], max(self._code_end, starts[-1])] if starts else []
        return dict(zip(self._index.offsets.tolist(), ends, strict=True))

    def function(self, offset: int) -> FunctionRows:
        """The row of one entry. Raises BadCfiError if there is none."""
        if offset % 8 or offset // 8 >= len(self._words) or offset not in self._end_of:
            raise BadCfiError("no such entry of the exception index", offset)
        first, second = self._words[offset // 8].tolist()
        start = (self._vaddr + offset + int(_signed31(np.array([first]))[0])) & 0xFFFFFFFF
        end = self._end_of[offset]
        try:
            row = self._row_of(second, self._vaddr + offset + 4)
        except BadCfiError:
            return malformed(start, end)
        return FunctionRows(start, end, [start], lambda i: row)

    def _row_of(self, word: int, vaddr: int) -> UnwindRow:
        if word == _CANTUNWIND:
            return _ENDS_HERE
        if word & _INLINE:
            if word >> 24 & 0x7F:
                raise BadCfiError("an inline entry for another personality routine than 0", vaddr)
            return run(word.to_bytes(4, "big")[1:])
        return run(self._program_at((vaddr + int(_signed31(np.array([word]))[0])) & 0xFFFFFFFF))

    def _program_at(self, vaddr: int) -> bytes:
        """The instructions of an entry of .ARM.extab."""
        word = self._word(vaddr)
        if word & _INLINE:
            model = word >> 24 & 0x7F
            if model == 0:
                return word.to_bytes(4, "big")[1:]
            if model > 2:
                raise BadCfiError(f"unknown personality routine {model}", vaddr)
            return word.to_bytes(4, "big")[2:] + self._big_endian(vaddr + 4, word >> 16 & 0xFF)
        # Generic model: a personality routine of the language's own. GNU's and LLVM's all take the instructions
        # behind it, a count of further words in the first byte.
        word = self._word(vaddr + 4)
        return word.to_bytes(4, "big")[1:] + self._big_endian(vaddr + 8, word >> 24)

    def _word(self, vaddr: int) -> int:
        return int.from_bytes(self._big_endian(vaddr, 1), "big")

    def _big_endian(self, vaddr: int, words: int) -> bytes:
        """Instructions run from the most significant byte of each word on."""
        data = self._read(vaddr, 4 * words)
        if len(data) < 4 * words:
            raise BadCfiError("an entry of .ARM.extab outside the file", vaddr)
        return np.frombuffer(data, "<u4").astype(">u4").tobytes()


def _signed31(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """R_ARM_PREL31: a signed number of 31 bits."""
    low = words.astype(np.int64) & 0x7FFF_FFFF
    return low - ((low & 0x4000_0000) << 1)


@dataclass(frozen=True, slots=True)
class _Address:
    """base + offset. base: a register, or the code of a DWARF expression."""

    base: int | bytes
    offset: int

    def moved(self, distance: int) -> _Address:
        return _Address(self.base, self.offset + distance)

    def code(self) -> bytes:
        """The address as a DWARF expression."""
        if isinstance(self.base, int):
            return bytes([_DW_OP_BREG0 + self.base]) + write_sleb(self.offset)
        if not self.offset:
            return self.base
        return self.base + bytes([_DW_OP_CONSTS]) + write_sleb(self.offset) + bytes([_DW_OP_PLUS])

    def contents(self) -> _Address:
        return _Address(self.code() + bytes([_DW_OP_DEREF]), 0)


@dataclass(slots=True)
class _Machine:
    """vsp: the virtual stack pointer. saved: addresses of the caller's registers."""

    code: bytes
    vsp: _Address = _Address(SP, 0)
    saved: dict[int, _Address] = field(default_factory=dict)

    def operand(self, at: int) -> int:
        if at >= len(self.code):
            raise BadCfiError("an exception table instruction that is cut", at)
        return self.code[at]

    def move(self, distance: int) -> None:
        self.vsp = self.vsp.moved(distance)

    def pop(self, first: int, mask: int) -> None:
        """Register first + i for each bit i of the mask, in ascending order."""
        slot, loaded = self.vsp, None
        for i in range(mask.bit_length()):
            if mask >> i & 1:
                if first + i == SP:
                    loaded = slot
                else:
                    self.saved[first + i] = slot
                slot = slot.moved(4)
        self.vsp = slot if loaded is None else loaded.contents()

    def take(self, register: int) -> None:
        """vsp = register, as it is at this point of the unwinding."""
        slot = self.saved.get(register)
        self.vsp = _Address(register, 0) if slot is None else slot.contents()

    def row(self) -> UnwindRow:
        cfa = self.vsp
        rules = tuple(self._rule(register, self.saved[register]) for register in sorted(self.saved))
        back = PC if PC in self.saved else LR
        if isinstance(cfa.base, int):
            return UnwindRow(cfa.base, cfa.offset, b"", rules, back, False, Method.EXIDX)
        return UnwindRow(-1, 0, cfa.code(), rules, back, False, Method.EXIDX)

    def _rule(self, register: int, slot: _Address) -> RegisterRule:
        if slot.base == self.vsp.base:
            return RegisterRule(register, RuleKind.OFFSET, slot.offset - self.vsp.offset)
        return RegisterRule(register, RuleKind.EXPRESSION, 0, slot.code())


# EXIDX_CANTUNWIND, and "refuse to unwind"
_ENDS_HERE = UnwindRow(SP, 0, b"", (RegisterRule(LR, RuleKind.UNDEFINED),), LR, False, Method.EXIDX)


def run(code: bytes) -> UnwindRow:
    """The row that a program of the exception table describes. Raises BadCfiError."""
    machine = _Machine(code)
    at = 0
    while at < len(code) and code[at] != 0xB0:  # finish
        op = code[at]
        if op < 0x80:
            distance = ((op & 0x3F) << 2) + 4
            machine.move(distance if op < 0x40 else -distance)
            at += 1
        elif op == 0x80 and machine.operand(at + 1) == 0:
            return _ENDS_HERE
        else:
            at = _instruction(machine, op, at + 1)
    return machine.row()


def _instruction(m: _Machine, op: int, at: int) -> int:
    """Instructions from 0x80 on; returns the offset behind."""
    low = op & 7
    if op < 0x90:
        m.pop(4, (op & 0xF) << 8 | m.operand(at))
        return at + 1
    if op < 0xA0 and op & 0xF not in (SP, PC):
        m.take(op & 0xF)
    elif 0xA0 <= op < 0xB0:
        m.pop(4, (1 << low + 1) - 1 | (1 << LR - 4 if op & 8 else 0))
    elif op in _WITH_OPERAND:
        return _WITH_OPERAND[op](m, at)
    elif op == 0xB4:  # the return address authentication code
        m.move(4)
    elif op == 0xB5:  # vsp is the modifier of that code
        pass
    elif 0xB8 <= op < 0xC0:  # d8 …, FSTMFDX
        m.move(8 * (low + 1) + 4)
    elif 0xC0 <= op < 0xC6 or 0xD0 <= op < 0xD8:  # wR10 … (iWMMXt); d8 …, VPUSH
        m.move(8 * (low + 1))
    else:
        raise BadCfiError(f"a spare exception table instruction {op:#04x}", at - 1)
    return at


def _pop_low(m: _Machine, at: int) -> int:
    mask = m.operand(at)
    if not 0 < mask < 16:
        raise BadCfiError("a spare exception table instruction 0xb1", at)
    m.pop(0, mask)
    return at + 1


def _pop_control(m: _Machine, at: int) -> int:
    mask = m.operand(at)
    if not 0 < mask < 16:
        raise BadCfiError("a spare exception table instruction 0xc7", at)
    m.move(4 * mask.bit_count())  # wCGR0 … wCGR3 of iWMMXt
    return at + 1


def _large_move(m: _Machine, at: int) -> int:
    value, after = read_uleb(m.code, at)
    m.move(0x204 + (value << 2))
    return after


def _doubles(extra: int) -> Callable[[_Machine, int], int]:
    """Pops of (low 4 bits) + 1 registers of 8 bytes, which no CFA depends on."""

    def instruction(m: _Machine, at: int) -> int:
        m.move(8 * ((m.operand(at) & 0xF) + 1) + extra)
        return at + 1

    return instruction


_WITH_OPERAND: dict[int, Callable[[_Machine, int], int]] = {
    0xB1: _pop_low,
    0xB2: _large_move,
    0xB3: _doubles(4),  # FSTMFDX
    0xC6: _doubles(0),
    0xC7: _pop_control,
    0xC8: _doubles(0),
    0xC9: _doubles(0),
}
