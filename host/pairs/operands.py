"""Operands of a rule in a pair file: which argument or memory holds a value, and which calls count (docs/use/pairs.md)."""

import re
from dataclasses import dataclass
from typing import Any

from memleak_android.host.errors import UsageError

_OPERAND = re.compile(
    r"(?P<star>\*)?\s*(?P<open>\()?\s*argument (?P<argument>[1-6])(?:\s*\+\s*(?P<offset>\d{1,5}))?\s*(?P<close>\))?"
)
_WHEN = re.compile(r"(?P<operand>[^&=]+?)(?:&(?P<mask>[^&=]+))?==(?P<values>[^&=]+)")
_WORD_MASK = 0xFFFFFFFF
VALUES_MAX = 8  # ML_PAIR_VALUES
_RECEIVED = re.compile(r"descriptors of argument ([1-6])")
_RECEIVED_MAX = 253  # SCM_MAX_FD


@dataclass(frozen=True, slots=True)
class Handle:
    """The value that identifies a resource.

    argument: counted from 1, 0 = the return value.
    is_indirect: the handle is in memory, `offset` bytes after the address in that argument.
    count: number of consecutive handles.
    is_received: the handles came with the struct msghdr that the argument points to.
    """

    argument: int = 0
    is_indirect: bool = False
    count: int = 1
    offset: int = 0
    is_received: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A call counts if 32 bits of an argument, or of the memory it points to, are one of `values` under `mask`."""

    operand: Handle
    mask: int
    values: tuple[int, ...]


def handle_of(label: str, value: Any, count: int, is_release: bool) -> Handle:
    """Parses `argument 1`, `*argument 1`, `*(argument 1 + 8)`; for an acquire `return` too.

    label: begins the UsageError's text.
    """
    found = _parsed(value, count)
    if found and count > 1 and not found.is_indirect:
        raise UsageError(f"{label}: handles = {count} needs memory with several handles", "write *argument N")
    if found:
        return found
    if value == "return" and not is_release and count == 1:
        return Handle()
    received = (
        _RECEIVED.fullmatch(value) if isinstance(value, str) and not is_release and count == 1 else None
    )
    if received:
        return Handle(int(received[1]), True, _RECEIVED_MAX, is_received=True)
    raise UsageError(
        f"{label}: handle = {value!r} is not understood",
        "write argument N, *argument N or *(argument N + BYTES) (1 to 6)"
        + ("" if is_release else ", or return"),
    )


def condition_of(label: str, value: Any) -> Condition:
    """Parses `argument 2 == 0 or 1030`, `*(argument 2 + 8) & 1 == 0`. label: begins the UsageError's text."""
    match = _WHEN.fullmatch(value) if isinstance(value, str) else None
    where = _parsed(match["operand"], 1) if match else None
    try:
        if match is None or where is None:
            raise ValueError
        mask = int(match["mask"] or str(_WORD_MASK), 0)
        numbers = [int(text, 0) for text in match["values"].split(" or ")]
        values = tuple(number & _WORD_MASK for number in numbers)
        if (
            not all(-(2**31) <= number <= _WORD_MASK for number in numbers)
            or len(values) > VALUES_MAX
            or not 0 < mask <= _WORD_MASK
        ):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{label}: when = {value!r} is not understood",
            "write like argument 2 == 0 or 1030, or *(argument 2 + 8) & 1 == 0",
        ) from None
    return Condition(where, mask, values)


def _parsed(value: Any, count: int) -> Handle | None:
    match = _OPERAND.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or bool(match["open"]) != bool(match["close"]):
        return None
    if match["offset"] and not (match["star"] and match["open"]):
        return None
    return Handle(int(match["argument"]), bool(match["star"]), count, int(match["offset"] or 0))
