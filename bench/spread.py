"""Arithmetic and tables of paired rounds: round i of one configuration belongs to round i of another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memleak_android.host.console import aligned


@dataclass(frozen=True, slots=True)
class Spread:
    """Summary of several rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """By pair. A denominator of zero or less (an added cost below the noise) gives infinity."""
    return [
        one / other if other > 0 else math.inf for one, other in zip(numerators, denominators, strict=True)
    ]


def differences(values: Sequence[float], baselines: Sequence[float]) -> list[float]:
    """By pair: what was added to the baseline."""
    return [one - other for one, other in zip(values, baselines, strict=True)]


def crossing(points: Sequence[tuple[float, float]], limit: float) -> float | None:
    """The x at which y first exceeds `limit`, between two points by a straight line; None: it never does.

    points: (x, y) in ascending x.
    """
    before: tuple[float, float] | None = None
    for x, y in points:
        if y > limit:
            if before is None:
                return x
            return before[0] + (limit - before[1]) / (y - before[1]) * (x - before[0])
        before = (x, y)
    return None


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
