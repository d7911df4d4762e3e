"""Conditions on arguments, which the kernel evaluates before a call counts."""

import re
from dataclasses import dataclass

from memleak_android.host.errors import UsageError
from memleak_android.host.snoop.formats import CallFormat
from memleak_android.host.wire.calls import ARGUMENTS, Comparison

FILTERS_MAX = 4  # of one function (ML_SNOOP_FILTERS)
_CONDITION = re.compile(r"(?:(.+):)?\s*arg(\d+)\s*(==|!=|<=|>=|<|>|&)\s*(-?(?:0x[0-9a-fA-F]+|\d+))\s*")
_COMPARISONS = {
    "==": Comparison.EQ, "!=": Comparison.NE, "<": Comparison.LT, "<=": Comparison.LE, ">": Comparison.GT,
    ">=": Comparison.GE, "&": Comparison.AND,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArgumentFilter:
    """functions: a glob of names."""

    functions: str
    argument: int
    comparison: Comparison
    value: int

    def compared(self, shown: CallFormat) -> tuple[int, int, int]:
        """Comparison, bits (0: 64, or 32 where the upper half is 0) and value.

        The argument's word decides. Without a word, compilers pass an int with its upper half 0 or extended."""
        words = shown.arguments[self.argument : self.argument + 1]
        is_order = Comparison.LT <= self.comparison <= Comparison.GE
        known = words[0].integer if words else None
        if known is None:
            is_signed = (
                self.value < 0 or (is_order and not self.value)
            ) and self.comparison != Comparison.AND
            bits = 0 if is_signed else 64
        else:
            bits, is_signed = known[0], known[1] and is_order
        value = self.value % 2 ** (64 if is_signed else bits) if self.value < 0 else self.value
        return self.comparison + is_signed * Comparison.SIGNED, bits, value


def parse_filter(text: str) -> ArgumentFilter:
    """Parses `arg0>4096`, `write:arg2>=0x100`, `arg1<-1`. Raises UsageError."""
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
    return ArgumentFilter(match[1] or "*", argument, _COMPARISONS[match[3]], value)
