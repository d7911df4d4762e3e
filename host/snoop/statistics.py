"""Statistics of each function: totals, quantiles, histogram."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.console import aligned
from memleak_android.host.wire.calls import SUB_BUCKETS, CountedFunction

QUANTILES = (0.5, 0.9, 0.99)
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_HEADINGS = ("FUNCTION", "CALLS", "ACTIVE", "TOTAL", "MIN", "MEAN", "P50", "P90", "P99", "MAX")
_BAR = 40
_NAME_MAX = 60


@dataclass(frozen=True, slots=True)
class FunctionStatistics:
    """Times in nanoseconds, of the calls that returned.

    hidden: counted calls that were not sent (rate limit).
    quantiles: at QUANTILES, exact to a sixteenth.
    histogram: (power, calls of 2**power up to 2**(power + 1) ns).
    has_return: False if only entries are probed.
    """

    name: str
    calls: int
    returns: int
    unpaired: int
    filtered: int
    hidden: int
    total_ns: int
    min_ns: int
    max_ns: int
    quantiles: tuple[float, ...]
    histogram: tuple[tuple[int, int], ...]
    has_return: bool = True

    @property
    def active(self) -> int:
        return max(0, self.calls - self.returns - self.unpaired) if self.has_return else 0

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.returns if self.returns else 0.0


def bucket_bounds(bucket: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bounds of buckets, in nanoseconds (device/wire_calls.h)."""
    power = np.maximum(bucket // SUB_BUCKETS - 1, 0)
    step = np.exp2(power)
    low = np.where(bucket < SUB_BUCKETS, bucket, (SUB_BUCKETS + bucket % SUB_BUCKETS) * step)
    return low.astype(np.float64), (low + step).astype(np.float64)


def summarize(name: str, counted: CountedFunction, has_return: bool = True) -> FunctionStatistics:
    row = counted.row
    bucket = counted.buckets["bucket"].astype(np.int64)
    count = counted.buckets["count"].astype(np.int64)
    low, high = bucket_bounds(bucket)
    # The last bucket has no end, and no call reached the outer borders.
    low = np.clip(low, float(row["min_ns"]), None)
    high = np.clip(high, None, float(row["max_ns"]))
    return FunctionStatistics(
        name,
        int(row["calls"]),
        int(row["returns"]),
        int(row["unpaired"]),
        int(row["filtered"]),
        int(row["hidden"]),
        int(row["total_ns"]),
        int(row["min_ns"]),
        int(row["max_ns"]),
        tuple(_quantile(q, low, high, count) for q in QUANTILES),
        _by_power(low, count),
        has_return,
    )


def _quantile(
    share: float, low: NDArray[np.float64], high: NDArray[np.float64], count: NDArray[np.int64]
) -> float:
    """Interpolates inside the quantile's bucket."""
    if not len(count):
        return 0.0
    before = np.concatenate(([0], np.cumsum(count)))
    rank = share * before[-1]
    at = min(int(np.searchsorted(before, rank, side="right")) - 1, len(count) - 1)
    inside = (rank - before[at]) / count[at]
    return float(low[at] + (high[at] - low[at]) * min(max(inside, 0.0), 1.0))


def _by_power(low: NDArray[np.float64], count: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    powers = np.floor(np.log2(np.maximum(low, 1))).astype(int)
    return tuple((int(power), int(count[powers == power].sum())) for power in np.unique(powers))


def by_total_time(functions: Sequence[FunctionStatistics]) -> list[FunctionStatistics]:
    return sorted(functions, key=lambda function: (-function.total_ns, -function.calls, function.name))


def show_duration(nanoseconds: float) -> str:
    """Three digits and a unit: 812 ns, 9.31 us, 1.20 s."""
    for factor, unit in _UNITS:
        if nanoseconds >= factor:
            value = nanoseconds / factor
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{nanoseconds:.0f} ns"


def table_lines(functions: Sequence[FunctionStatistics]) -> list[str]:
    """Aligned rows; the last line counts functions without calls."""
    called = [one for one in functions if one.calls or one.filtered]
    cells = [_HEADINGS, *(_cells(one) for one in called)]
    lines = aligned(cells, {0}) if called else []
    lines += [remark for one in called for remark in _remarks(one)]
    if len(called) < len(functions):
        lines.append(f"{len(functions) - len(called)} of {len(functions)} functions were not called")
    return lines


def histogram_lines(one: FunctionStatistics) -> list[str]:
    """Rows of a histogram by powers of two."""
    if not one.histogram:
        return []
    most = max(count for _, count in one.histogram)
    rows = [(f"{show_duration(2.0**power)}", count) for power, count in _without_gaps(one.histogram)]
    width, digits = max(len(low) for low, _ in rows), len(f"{most:,}")
    return [
        f"{one.name}: calls by duration, each row up to twice its own",
        *(
            f"  {low:>{width}}  {count:>{digits},}  {'#' * round(_BAR * count / most)}".rstrip()
            for low, count in rows
        ),
    ]


def _without_gaps(histogram: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    counts = dict(histogram)
    for power in range(histogram[0][0], histogram[-1][0] + 1):
        yield power, counts.get(power, 0)


def _cells(one: FunctionStatistics) -> tuple[str, ...]:
    name = one.name if len(one.name) <= _NAME_MAX else f"{one.name[: _NAME_MAX - 1]}…"
    if not one.has_return:
        return (name, f"{one.calls:,}", *[""] * 8)
    times = [one.min_ns, one.mean_ns, *one.quantiles, one.max_ns] if one.returns else []
    shown = [show_duration(value) for value in times] or [""] * 6
    return name, f"{one.calls:,}", f"{one.active:,}", show_duration(one.total_ns), *shown


def _remarks(one: FunctionStatistics) -> Iterator[str]:
    if one.unpaired:
        yield (
            f"{one.name}: {one.unpaired:,} left without a visible return"
            " (longjmp, an exception, the thread's end, or deeper than the kernel's 64)"
        )
    if one.hidden:
        yield f"{one.name}: {one.hidden:,} calls were counted but not shown (--rate)"
    if one.filtered:
        yield f"{one.name}: {one.filtered:,} calls did not match --filter"
