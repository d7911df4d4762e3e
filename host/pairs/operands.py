"""Where in a call a value stands, and which calls count: the words of a rule in a pair file (docs/use/pairs.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from memleak_android.host.errors import UsageError

_PLACE = re.compile(
    r"(?P<star>\*)?\s*(?P<open>\()?\s*argument (?P<argument>[1-6])(?:\s*\+\s*(?P<offset>\d{1,5}))?\s*(?P<close>\))?"
)
_WHEN = re.compile(r"(?P<place>[^&=]+?)(?:&(?P<mask>[^&=]+))?==(?P<values>[^&=]+)")
_WORD_MASK = 0xFFFFFFFF
VALUES_MAX = 8  # ML_PAIR_VALUES
_RECEIVED = re.compile(r"descriptors of argument ([1-6])")
_RECEIVED_MAX = 253  # SCM_MAX_FD


@dataclass(frozen=True, slots=True)
class Handle:
    """What tells a resource. argument: counted from 1, 0 = the return value. is_indirect: it is stored there, `offset`
    bytes on. count: how many, side by side. is_received: they came with the struct msghdr to which the argument points.
    """

    argument: int = 0
    is_indirect: bool = False
    count: int = 1
    offset: int = 0
    is_received: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """Calls count where 32 bits of an argument, or at the place it points to, are one of `values` under `mask`."""

    place: Handle
    mask: int
    values: tuple[int, ...]


def handle_of(place: str, value: Any, count: int, is_release: bool) -> Handle:
    """`argument 1`, `*argument 1`, `*(argument 1 + 8)`, of what acquires `return` too. Raises UsageError, which begins with
    `place`.
    """
    found = _parsed(value, count)
    if found and count > 1 and not found.is_indirect:
        raise UsageError(
            f"{place}: handles = {count} needs a place where they stand side by side", "write *argument N"
        )
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
        f"{place}: handle = {value!r} is not understood",
        "write argument N, *argument N or *(argument N + BYTES) (1 to 6)"
        + ("" if is_release else ", or return"),
    )


def condition_of(place: str, value: Any) -> Condition:
    """`argument 2 == 0 or 1030`, `*(argument 2 + 8) & 1 == 0`. Raises UsageError, which begins with `place`."""
    match = _WHEN.fullmatch(value) if isinstance(value, str) else None
    where = _parsed(match["place"], 1) if match else None
    try:
        if match is None or where is None:
            raise ValueError
        mask = int(match["mask"] or str(_WORD_MASK), 0)
        given = [int(one, 0) for one in match["values"].split(" or ")]
        values = tuple(one & _WORD_MASK for one in given)
        if (
            not all(-(2**31) <= one <= _WORD_MASK for one in given)
            or len(values) > VALUES_MAX
            or not 0 < mask <= _WORD_MASK
        ):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{place}: when = {value!r} is not understood",
            "write like argument 2 == 0 or 1030, or *(argument 2 + 8) & 1 == 0",
        ) from None
    return Condition(where, mask, values)


def _parsed(value: Any, count: int) -> Handle | None:
    match = _PLACE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or bool(match["open"]) != bool(match["close"]):
        return None
    if match["offset"] and not (match["star"] and match["open"]):
        return None
    return Handle(int(match["argument"]), bool(match["star"]), count, int(match["offset"] or 0))
