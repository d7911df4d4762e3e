"""Step plans as columns: what the lock-step unwinder gathers from, one line per distinct plan."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.expression import fold
from memleak_android.unwind.cfi.rules import DEX_MARK, RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.reader import read_uleb
from memleak_android.unwind.trace import Method
from memleak_android.unwind.walk.fallback import frame_pointer_span
from memleak_android.unwind.walk.plan import NO_MAPPING, StepKind, StepPlan

KEPT = -(1 << 60)  # in `saved`: the register keeps its value; so far below sp that it falls out as such
LOST = KEPT + 1  # in `saved`: the register has no value in the caller
_OFFSET_MAX = 1 << 31
_DW_OP_DEREF, _DW_OP_PLUS_UCONST = 0x06, 0x23


class LineKind(IntEnum):
    """How the lock-step handles a plan. From NO_MAPPING on: it cannot step."""

    STEP = 0  # CFA = register + offset, return address and registers at CFA + offset
    FRAME_POINTER = 1  # as STEP with the frame pointer, guarded
    ROOT = 2  # return address undefined: the CFA is not needed
    NO_MAPPING = 3
    UNSUPPORTED_RULE = 4
    SCALAR = 5  # needs step.py
    NO_UNWIND_ROW = 6
    START = 7  # the thread's start where the frame pointer is 0


_KIND_OF_END = {
    StepKind.NO_MAPPING: LineKind.NO_MAPPING,
    StepKind.UNSUPPORTED_RULE: LineKind.UNSUPPORTED_RULE,
    StepKind.ROOT: LineKind.ROOT,
    StepKind.NO_UNWIND_ROW: LineKind.NO_UNWIND_ROW,
    StepKind.START: LineKind.START,
}


_COLUMNS = (
    "kind",
    "method",
    "cfa_register",
    "by_link",
    "is_signed",
    "cfa_is_read",
    "cfa_added",
    "cfa_offset",
    "return_offset",
    "dex_register",
    "dex_offset",
)


class RuleColumns:
    """Columns by line number; line 0 is NO_MAPPING.

    cfa_register: position in arch.callee_saved, or -1 for the stack pointer. cfa_offset, return_offset: bytes
    (return_offset from the CFA). saved[k]: offset from the CFA of register arch.callee_saved[k], KEPT or LOST.
    loses[k]: whether any line has LOST there. by_link: the return address is what the link register holds.
    is_signed: the return address carries a signature. dex_register, dex_offset: position in arch.callee_saved of the
    register that + dex_offset is a dex pc, or -1. names_bytecode: whether any line has one. cfa_is_read:
    CFA = *(cfa_register + cfa_offset) + cfa_added (ART's interpreter); reads_cfa: whether any line has that.
    """

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self._lines: dict[StepPlan, int] = {}
        self._position = {slot: k for k, slot in enumerate(arch.callee_saved)}
        self.fp_position = self._position[arch.fp]
        self.loses = [False] * len(arch.callee_saved)
        self.names_bytecode = self.reads_cfa = False
        self._allocate(256)
        self.line_of(NO_MAPPING)

    def __len__(self) -> int:
        return len(self._lines)

    def line_of(self, plan: StepPlan) -> int:
        """The line of a plan, added when it is new."""
        line = self._lines.get(plan)
        if line is None:
            line = len(self._lines)
            if line == len(self.kind):
                self._grow()
            self._write(line, plan)
            self._lines[plan] = line
        return line

    def _allocate(self, size: int) -> None:
        self.kind = np.zeros(size, np.uint8)
        self.method = np.zeros(size, np.uint8)
        self.cfa_register = np.full(size, -1, np.int8)
        self.by_link = np.zeros(size, np.bool_)
        self.is_signed = np.zeros(size, np.bool_)
        self.cfa_is_read = np.zeros(size, np.bool_)
        self.cfa_added = np.zeros(size, np.int64)
        self.dex_register = np.full(size, -1, np.int8)
        self.dex_offset = np.zeros(size, np.int64)
        self.cfa_offset = np.zeros(size, np.int64)
        self.return_offset = np.zeros(size, np.int64)
        self.saved = np.full((len(self.arch.callee_saved), size), KEPT, np.int64)

    def _grow(self) -> None:
        old = self.__dict__.copy()
        size = len(self.kind)
        self._allocate(2 * size)
        for name in _COLUMNS:
            getattr(self, name)[:size] = old[name]
        self.saved[:, :size] = old["saved"]

    def _write(self, line: int, plan: StepPlan) -> None:
        if plan.kind is StepKind.FRAME_POINTER:
            self._write_frame_pointer(line)
        elif plan.row is not None:
            self.method[line] = plan.row.method
            self.kind[line] = self._write_row(line, plan.row)
        else:
            self.kind[line] = _KIND_OF_END[plan.kind]

    def _write_frame_pointer(self, line: int) -> None:
        saved, back, span = frame_pointer_span(self.arch)
        self.kind[line] = LineKind.FRAME_POINTER
        self.method[line] = Method.FP
        self.cfa_register[line] = self.fp_position
        self.cfa_offset[line] = span
        self.return_offset[line] = back - span
        self.saved[self.fp_position, line] = saved - span

    def _write_row(self, line: int, row: UnwindRow) -> LineKind:
        if row.method is Method.PROLOGUE or row.is_signal or abs(row.cfa_offset) >= _OFFSET_MAX:
            return LineKind.SCALAR
        base, offset = row.cfa_register, row.cfa_offset
        if row.cfa_expression:
            read = _read_and_add(row.cfa_expression, self.arch.word_bytes)
            if read is None:
                return LineKind.SCALAR
            base, offset, self.cfa_added[line] = read
            self.cfa_is_read[line] = self.reads_cfa = True
        slot = self.arch.slot_of_dwarf.get(base, -1)
        if slot != self.arch.sp:
            if slot not in self._position:
                return LineKind.SCALAR
            self.cfa_register[line] = self._position[slot]
        self.cfa_offset[line] = offset
        back: RegisterRule | None = None
        for rule in row.rules:
            if rule.register == row.return_register:
                back = rule
            elif not self._write_saved(line, rule):
                return LineKind.SCALAR
        return self._write_return(line, row, back)

    def _write_saved(self, line: int, rule: RegisterRule) -> bool:
        slot = self.arch.slot_of_dwarf.get(rule.register, -1)
        position = self._position.get(slot)
        if position is None:
            if rule.expression.startswith(DEX_MARK):
                return self._write_bytecode(line, rule)
            return slot != self.arch.sp  # rules of caller-saved registers do not matter to the lock-step
        if rule.kind is RuleKind.OFFSET and self._is_word(rule.offset):
            self.saved[position, line] = rule.offset
        elif rule.kind is RuleKind.UNDEFINED:
            self.saved[position, line] = LOST
            self.loses[position] = True
        elif rule.kind is not RuleKind.SAME_VALUE:
            return False
        return True

    def _write_bytecode(self, line: int, rule: RegisterRule) -> bool:
        place = fold(rule.expression[len(DEX_MARK) :], {}, self.arch.word_bytes)
        position = self._position.get(self.arch.slot_of_dwarf.get(place.register, -1)) if place else None
        if place is None or position is None or self.dex_register[line] >= 0:
            return False
        if abs(place.offset) >= _OFFSET_MAX:
            return False
        self.dex_register[line], self.dex_offset[line] = position, place.offset
        self.names_bytecode = True
        return rule.kind is RuleKind.VAL_EXPRESSION

    def _write_return(self, line: int, row: UnwindRow, rule: RegisterRule | None) -> LineKind:
        self.is_signed[line] = row.is_return_signed
        link = self.arch.link
        if link is not None and self.arch.slot_of_dwarf.get(row.return_register) != link:
            return LineKind.SCALAR
        if rule is None or rule.kind is RuleKind.SAME_VALUE:
            self.by_link[line] = link is not None
            return LineKind.SCALAR if link is None else LineKind.STEP
        if rule.kind not in (RuleKind.OFFSET, RuleKind.UNDEFINED) or not self._is_word(rule.offset):
            return LineKind.SCALAR
        self.return_offset[line] = rule.offset
        return LineKind.ROOT if rule.kind is RuleKind.UNDEFINED else LineKind.STEP

    def _is_word(self, offset: int) -> bool:
        return abs(offset) < _OFFSET_MAX and offset % self.arch.word_bytes == 0


def _read_and_add(expression: bytes, word_bytes: int) -> tuple[int, int, int] | None:
    """(register, offset, added) of an expression that says *(register + offset) + added, else None."""
    at = expression.find(_DW_OP_DEREF)
    while at >= 0:
        inner, rest = fold(expression[:at], {}, word_bytes), expression[at + 1 :]
        if inner is not None and abs(inner.offset) < _OFFSET_MAX:
            if not rest:
                return inner.register, inner.offset, 0
            try:
                added, end = read_uleb(rest, 1)
            except BadCfiError:
                return None
            if rest[0] == _DW_OP_PLUS_UCONST and end == len(rest) and added < _OFFSET_MAX:
                return inner.register, inner.offset, added
        at = expression.find(_DW_OP_DEREF, at + 1)
    return None
