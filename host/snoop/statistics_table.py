"""Statistics as a table and as histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memleak_android.host.snoop.durations import show_duration
from memleak_android.host.snoop.statistics import FunctionStatistics

_HEADINGS = ("FUNCTION", "CALLS", "ACTIVE", "TOTAL", "MIN", "MEAN", "P50", "P90", "P99", "MAX")
_BAR = 40
_NAME_MAX = 60


def table_lines(functions: Sequence[FunctionStatistics]) -> list[str]:
    """Aligned rows; the last line counts functions without calls."""
    called = [one for one in functions if one.calls or one.filtered]
    cells = [_HEADINGS, *(_cells(one) for one in called)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(row, widths) for row in cells] if called else []
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


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


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
