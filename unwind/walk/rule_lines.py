"""Step plans as the lines that the compiled engine steps by (struct walk_line), one per distinct plan."""

import numpy as np

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.expression import fold
from memleak_android.unwind.cfi.rules import DEX_MARK, RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.engine import library as c
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.reader import read_uleb
from memleak_android.unwind.trace import Method
from memleak_android.unwind.walk.plan import NO_MAPPING, StepKind, StepPlan

_OFFSET_MAX = 1 << 31
_DW_OP_DEREF, _DW_OP_PLUS_UCONST = 0x06, 0x23


class RuleLines:
    """lines: one per distinct plan, of which the first `len()` are used; line 0 is NO_MAPPING.

    interpreters: the rest of lines with READS_CFA or HAS_DEX_PC. Register positions are those in arch.callee_saved.
    """

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.lines = np.zeros(0, c.LINE)
        self.interpreters = np.zeros(0, c.INTERPRETER)
        self._line_of: dict[StepPlan, int] = {}
        self._position = {slot: k for k, slot in enumerate(arch.callee_saved)}
        self.fp_position = self._position[arch.fp]
        self.line_of(NO_MAPPING)

    def __len__(self) -> int:
        return len(self._line_of)

    def line_of(self, plan: StepPlan) -> int:
        """The line of a plan, added when it is new."""
        number = self._line_of.get(plan)
        if number is None:
            number = self._line_of[plan] = len(self._line_of)
            if number == len(self.lines):
                self._grow()
            self._write(number, plan)
        return number

    def bases(self, first: int) -> set[int]:
        """The registers that lines from `first` on read: bases of CFAs and of bytecode pointers."""
        new = slice(first, len(self))
        with_bytecode = self.interpreters[new][self.lines["flags"][new] & c.HAS_DEX_PC != 0]
        return {*self.lines["cfa_register"][new].tolist(), *with_bytecode["dex_register"].tolist()} - {-1}

    def _grow(self) -> None:
        more = max(len(self.lines), 256)
        lines = np.zeros(more, c.LINE)
        lines["cfa_register"] = -1
        lines["saved"] = c.KEPT
        self.lines = np.concatenate([self.lines, lines])
        self.interpreters = np.concatenate([self.interpreters, np.zeros(more, c.INTERPRETER)])

    def _write(self, number: int, plan: StepPlan) -> None:
        line = self.lines[number]
        if plan.kind is StepKind.FRAME_POINTER:
            self._write_frame_pointer(line)
        elif plan.row is not None:
            line["method"] = plan.row.method
            line["kind"] = self._write_row(line, self.interpreters[number], plan.row)
        else:
            line["kind"] = plan.kind

    def _write_frame_pointer(self, line: np.void) -> None:
        saved, back, span = self.arch.frame_record
        line["kind"], line["method"] = StepKind.FRAME_POINTER, Method.FP
        line["cfa_register"], line["cfa_offset"], line["return_offset"] = self.fp_position, span, back - span
        line["saved"][self.fp_position] = saved - span

    def _write_row(self, line: np.void, interpreter: np.void, row: UnwindRow) -> StepKind:
        if row.method is Method.PROLOGUE or row.is_signal or abs(row.cfa_offset) >= _OFFSET_MAX:
            return StepKind.SCALAR
        base, offset = row.cfa_register, row.cfa_offset
        if row.cfa_expression:
            read = _read_and_add(row.cfa_expression, self.arch.word_bytes)
            if read is None:
                return StepKind.SCALAR
            base, offset, interpreter["cfa_added"] = read
            line["flags"] |= c.READS_CFA
        slot = self.arch.slot_of_dwarf.get(base, -1)
        if slot != self.arch.sp:
            if slot not in self._position:
                return StepKind.SCALAR
            line["cfa_register"] = self._position[slot]
        line["cfa_offset"] = offset
        for rule in row.rules:
            if rule.register != row.return_register and not self._write_saved(line, interpreter, rule):
                return StepKind.SCALAR
        return self._write_return(line, row)

    def _write_saved(self, line: np.void, interpreter: np.void, rule: RegisterRule) -> bool:
        slot = self.arch.slot_of_dwarf.get(rule.register, -1)
        position = self._position.get(slot)
        if position is None:
            if rule.expression.startswith(DEX_MARK):
                return self._write_bytecode(line, interpreter, rule)
            return slot != self.arch.sp  # rules of caller-saved registers do not matter to the engine
        if rule.kind is RuleKind.OFFSET and self._is_word(rule.offset):
            line["saved"][position] = rule.offset
        elif rule.kind is RuleKind.UNDEFINED:
            line["saved"][position] = c.LOST
        elif rule.kind is not RuleKind.SAME_VALUE:
            return False
        return True

    def _write_bytecode(self, line: np.void, interpreter: np.void, rule: RegisterRule) -> bool:
        pointer = fold(rule.expression[len(DEX_MARK) :], {}, self.arch.word_bytes)
        position = self._position.get(self.arch.slot_of_dwarf.get(pointer.register, -1)) if pointer else None
        if pointer is None or position is None or line["flags"] & c.HAS_DEX_PC:
            return False
        if abs(pointer.offset) >= _OFFSET_MAX:
            return False
        interpreter["dex_register"], interpreter["dex_offset"] = position, pointer.offset
        line["flags"] |= c.HAS_DEX_PC
        return rule.kind is RuleKind.VAL_EXPRESSION

    def _write_return(self, line: np.void, row: UnwindRow) -> StepKind:
        rule, link = row.return_rule, self.arch.link
        line["flags"] |= c.SIGNED * row.is_return_signed
        if link is not None and self.arch.slot_of_dwarf.get(row.return_register) != link:
            return StepKind.SCALAR
        if rule is None or rule.kind is RuleKind.SAME_VALUE:
            line["flags"] |= c.BY_LINK * (link is not None)
            return StepKind.SCALAR if link is None else StepKind.ROW
        if rule.kind not in (RuleKind.OFFSET, RuleKind.UNDEFINED) or not self._is_word(rule.offset):
            return StepKind.SCALAR
        line["return_offset"] = rule.offset
        return StepKind.ROOT if rule.kind is RuleKind.UNDEFINED else StepKind.ROW

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
