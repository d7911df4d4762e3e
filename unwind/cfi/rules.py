"""CFA and register rules, in DWARF's words (DWARF 5 §6.4.1)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from memleak_android.unwind.trace import Method

# DW_OP_const4u 'DEX1', DW_OP_drop: what ART's interpreter puts before the expression that gives the dex pc
# (CFI_DEFINE_DEX_PC_WITH_OFFSET in art/runtime/arch/*/asm_support_*.S).
DEX_MARK = b"\x0cDEX1\x13"


class RuleKind(IntEnum):
    """How the caller's value of a register is found; `operand` is the rule's third field.

    UNDEFINED      no value
    SAME_VALUE     the value it has in this frame
    OFFSET         *(CFA + operand)
    VAL_OFFSET     CFA + operand
    REGISTER       the value of register `operand` in this frame
    EXPRESSION     *(expression), the CFA pushed first; operand: code bytes
    VAL_EXPRESSION expression, the CFA pushed first; operand: code bytes
    """

    UNDEFINED = 0
    SAME_VALUE = 1
    OFFSET = 2
    VAL_OFFSET = 3
    REGISTER = 4
    EXPRESSION = 5
    VAL_EXPRESSION = 6


class RegisterRule(NamedTuple):
    """The rule of one register, by DWARF number."""

    register: int
    kind: RuleKind
    offset: int = 0  # OFFSET, VAL_OFFSET: bytes; REGISTER: DWARF number
    expression: bytes = b""


class UnwindRow(NamedTuple):
    """The rules that hold for one range of code. Two ranges with equal rules share one row.

    CFA = cfa_register + cfa_offset, or the value of cfa_expression when that is not empty.
    is_return_signed: the return address carries a pointer authentication code (arm64, RA_SIGN_STATE = 1).
    """

    cfa_register: int
    cfa_offset: int
    cfa_expression: bytes
    rules: tuple[RegisterRule, ...]  # sorted by register; a register that is absent keeps its value
    return_register: int
    is_signal: bool
    method: Method
    is_return_signed: bool = False

    @property
    def return_rule(self) -> RegisterRule | None:
        """The rule of the return address; None: it is in its register."""
        return next((rule for rule in self.rules if rule.register == self.return_register), None)

    @property
    def ends_stack(self) -> bool:
        """Whether the return address is undefined: the outermost frame."""
        rule = self.return_rule
        return rule is not None and rule.kind is RuleKind.UNDEFINED

    def same_caller(self, other: UnwindRow) -> bool:
        """Whether both find the return address and the stack pointer of the caller by the same rules."""
        mine = self.cfa_register, self.cfa_offset, self.cfa_expression, _value_rule(self.return_rule)
        return mine == (
            other.cfa_register,
            other.cfa_offset,
            other.cfa_expression,
            _value_rule(other.return_rule),
        )


def _value_rule(rule: RegisterRule | None) -> tuple[RuleKind, int, bytes] | None:
    """A rule without its register: exception tables may restore the pc itself instead of the link register."""
    return None if rule is None else (rule.kind, rule.offset, rule.expression)
