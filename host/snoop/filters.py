"""Conditions on arguments, which the kernel evaluates before a call counts."""

import re
from dataclasses import dataclass

from memleak_android.host.errors import UsageError
from memleak_android.host.tracers.functions.written_names import is_called
from memleak_android.host.wire.calls import ARGUMENTS, Comparison

FILTERS_MAX = 4  # of one function (ML_SNOOP_FILTERS)
_CONDITION = re.compile(r"(?:(.+):)?\s*arg(\d+)\s*(==|!=|<=|>=|<|>|&)\s*(-?(?:0x[0-9a-fA-F]+|\d+))\s*")
_COMPARISONS = {
    "==": Comparison.EQ, "!=": Comparison.NE, "<": Comparison.LT, "<=": Comparison.LE, ">": Comparison.GT,
    ">=": Comparison.GE, "&": Comparison.AND,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArgumentFilter:
    """functions: a glob of names. comparison: enum ml_snoop_comparison. value: 64 bits."""

    functions: str
    argument: int
    comparison: int
    value: int

    def applies_to(self, name: str) -> bool:
        return is_called(name, self.functions)


def parse_filter(text: str) -> ArgumentFilter:
    """Parses `arg0>4096`, `write:arg2>=0x100`, `arg1<-1` (negative: signed comparison). Raises UsageError."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a filter", "write arg0>4096, or FUNCTION:arg0>4096; == != < <= > >= &"
        )
    argument, value = int(match[2]), int(match[4], 0)
    if argument >= ARGUMENTS:
        raise UsageError(f"{text!r}: there is no arg{argument}", f"arg0 to arg{ARGUMENTS - 1} are read")
    if not -(2**63) <= value < 2**64:
        raise UsageError(f"{text!r}: {match[4]} has more than 64 bits")
    comparison = int(_COMPARISONS[match[3]])
    if value < 0 and Comparison.LT <= comparison <= Comparison.GE:
        comparison += Comparison.SIGNED
    return ArgumentFilter(match[1] or "*", argument, comparison, value % 2**64)
