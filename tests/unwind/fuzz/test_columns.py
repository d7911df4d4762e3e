"""Rules that no line of the engine can hold."""

from __future__ import annotations

from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.cfi.rules import DEX_MARK, RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.trace import Method
from memleak_android.unwind.walk.plan import StepKind, StepPlan
from memleak_android.unwind.walk.rule_lines import LineKind, RuleLines
from tests.support.builders.cfi_assembler import sleb


def test_a_dex_pc_further_than_any_number() -> None:
    """DW_OP_breg3 of 2**69 behind 'DEX1'."""
    rule = RegisterRule(0, RuleKind.VAL_EXPRESSION, 0, DEX_MARK + b"\x73" + sleb(-(1 << 69)))
    row = UnwindRow(7, 8, b"", (rule, RegisterRule(16, RuleKind.OFFSET, -8)), 16, False, Method.EH_FRAME)
    rules = RuleLines(ARCH)
    line = rules.line_of(StepPlan(StepKind.ROW, row))
    assert rules.lines["kind"][line] == LineKind.SCALAR and not rules.interpreters["dex_offset"].any()
