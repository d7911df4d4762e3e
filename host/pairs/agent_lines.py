"""A rule as a line of the agent's configuration (docs/wire-protocol.md §8)."""

from memleak_android.host.pairs.operands import VALUES_MAX, Condition, Handle
from memleak_android.host.pairs.schema import PairFamily, PairRule

_ALWAYS = Condition(Handle(), 0, (0,))


def rule_line(function: int, number: int, family: PairFamily, rule: PairRule) -> str:
    """`rule FUNCTION` and the numbers of struct ml_pair. function: enum ml_function; number: of the family, 0 = the heap.

    A release that may fail is what realloc does with the old block, and no more.
    """
    a, b = (*rule.size_arguments, 0, 0)[:2]
    handle, when = rule.handle, rule.when or _ALWAYS
    may_fail = rule.is_release and rule.success is not None
    numbers = (
        rule.is_release and not may_fail, number, family.nesting, a, b, rule.factor,
        handle.argument, handle.is_indirect + handle.is_received, family.handle_bytes, 0 if may_fail else handle.count,
        rule.success or 0, rule.replaces, handle.argument if may_fail else rule.old,
        bool(rule.size_teller), handle.offset, family.is_of_process, rule.through, family.is_early, rule.zero_frees,
        when.operand.argument, when.operand.is_indirect, when.operand.offset, when.mask, *when.values,
        *when.values[-1:] * (VALUES_MAX - len(when.values)),
    )  # fmt: skip
    return f"rule {function:x} " + " ".join(str(int(one)) for one in numbers)
