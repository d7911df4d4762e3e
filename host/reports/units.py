"""Quantities, durations and times of a session in words: bytes in binary units, or what is counted (12 descriptors)."""

from memleak_android.host.profile.field_types import BYTE

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def count_text(n: float, noun: str) -> str:
    """`1 byte`, `1,200 descriptors`, `0.5 threads`."""
    figure = f"{n:,.0f}" if n == int(n) or abs(n) >= 10 else f"{n:.1f}"
    return f"{figure} {noun if abs(n) == 1 else plural(noun)}"


def plural(noun: str) -> str:
    return f"{noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def size_text(space: float, unit: str = BYTE) -> str:
    """`5.9 MiB`, `12 descriptors`."""
    if unit != BYTE:
        return count_text(space, unit)
    factor, unit = next((one for one in _SIZES if abs(space) >= one[0]), _SIZES[-1])
    return f"{space / factor:.1f} {unit}" if factor > 1 else f"{space:.0f} B"


def rate_text(bytes_per_s: float, error: float | None = None, run_s: float = 0.0, unit: str = BYTE) -> str:
    """`9.0 ± 0.1 MiB/min`, `12.0 ± 0.2 descriptors/min`, or `/run`, which take run_s. error: None = not shown."""
    seconds, per = (run_s, "run") if run_s else (60.0, "min")
    if error is None:
        return f"{size_text(bytes_per_s * seconds, unit)}/{per}"
    rate = bytes_per_s * seconds
    factor, name = next((one for one in _SIZES if abs(rate) >= one[0]), _SIZES[-1])
    if unit != BYTE:
        factor, name = 1, plural(unit)
    digits = 1 if error * seconds / factor >= 0.05 else 2
    digits = 0 if abs(rate / factor) >= 1024 else digits
    return f"{rate / factor:,.{digits}f} ± {error * seconds / factor:,.{digits}f} {name}/{per}"


def duration_text(ns: int) -> str:
    """`1.3 s`, `25 s`, `10 min`, `3.2 h`, `4.1 d`."""
    seconds = ns / 1e9
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def clock(ns: int) -> str:
    """`1:02:03` or `2:03` of the session."""
    seconds = ns // 10**9
    hours = f"{seconds // 3600}:{seconds // 60 % 60:02}" if seconds >= 3600 else str(seconds // 60)
    return f"{hours}:{seconds % 60:02}"
