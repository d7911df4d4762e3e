"""Figures as text."""

import math
from collections.abc import Mapping, Sequence

from bench.spread import Spread
from memleak_android.host.console import aligned


def render(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns: the first to the left, all others to the right."""
    return "\n".join(f"  {line}" for line in aligned([heading, *rows], {0}))


def number(value: float, digits: int = 1) -> str:
    return "∞" if math.isinf(value) else f"{value:,.{digits}f}"


def spread(values: Sequence[float], digits: int = 1, unit: str = "") -> str:
    """`median (low … high)`."""
    one = Spread.of(values)
    return f"{number(one.median, digits)}{unit} ({number(one.low, digits)} … {number(one.high, digits)})"


def losses(rounds: Sequence[Mapping[str, int]]) -> str:
    """The worst round by cause: `ring_full 12`, or `0`."""
    worst: dict[str, int] = {}
    for one in rounds:
        for cause, count in one.items():
            worst[cause] = max(count, worst.get(cause, 0))
    return ", ".join(f"{cause} {count:,}" for cause, count in worst.items()) or "0"
