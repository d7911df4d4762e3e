"""The rank of a leaking function in the output of a tool."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_PLACE = re.compile(r"^\s{0,3}(\d+)  ")


def rank_on_screen(screen: str, functions: Collection[str]) -> int:
    """The number of the first place of our report whose lines name one of the functions; 0 = none does."""
    rank = 0
    for line in screen.splitlines():
        if found := _PLACE.match(line):
            rank = int(found[1])
        elif rank and not line.strip():
            return 0
        if rank and any(name in line for name in functions):
            return rank
    return 0


def rank_of_stacks(stacks: Iterable[tuple[int, Collection[str]]], functions: Collection[str]) -> int:
    """Of stacks with bytes and the names of their frames: the place of the first with one of the functions, by bytes."""
    ordered = sorted(stacks, key=lambda one: -one[0])
    for rank, (_, names) in enumerate(ordered, 1):
        if any(function in name for name in names for function in functions):
            return rank
    return 0
