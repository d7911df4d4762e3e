"""Durations as text."""

from __future__ import annotations

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def show_duration(nanoseconds: float) -> str:
    """Three digits and a unit: 812 ns, 9.31 us, 1.20 s."""
    for factor, unit in _UNITS:
        if nanoseconds >= factor:
            value = nanoseconds / factor
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{nanoseconds:.0f} ns"
