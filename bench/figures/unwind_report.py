"""Seconds of unwinding as microseconds per sample, nanoseconds per frame and ratios."""

from collections.abc import Sequence
from typing import Any

from bench.figures.unwind import Recording
from bench.figures.whole_file import WholeFile
from bench.spread import Spread, ratios
from bench.table import number, render, spread

ROWS = (
    "libdwfl cold", "libdwfl warm", "libunwindstack cold", "libunwindstack warm", "perf script",
    "compiled cold", "compiled cold, cached", "compiled warm",
)  # fmt: skip
_PEERS = {"cold": "libdwfl cold", "warm": "libdwfl warm"}


def as_text(recordings: Sequence[Recording], whole: WholeFile) -> str:
    parts = [
        _recording(one) if not one.missing else f"  {one.name} not run: {one.missing}" for one in recordings
    ]
    return "\n".join([*parts, _whole(whole)])


def _recording(one: Recording) -> str:
    head = (
        f"  {one.name}: {one.samples:,} samples, {one.frames / one.samples:.1f} frames each; "
        f"chains that differ from libdwfl: {one.differ}"
        + (f", and {one.made_up} that it goes on with where no code is mapped" if one.made_up else "")
        + (f"; of libunwindstack's {one.unwindstack_differ:,}" if one.unwindstack_differ is not None else "")
    )
    rows = []
    for row in (name for name in ROWS if name in one.seconds):
        seconds = one.seconds[row]
        cells = [row, spread([1e6 * s / one.samples for s in seconds], 2)]
        cells.append(number(1e9 * Spread.of(seconds).median / one.frames, 0))
        rows.append([*cells, _times(one, row), _against_perf(one, row)])
    heading = ["CPU", "µs per sample", "ns per frame", "× libdwfl", "× perf script"]
    return f"{head}\n{render(heading, rows)}"


def _times(one: Recording, row: str) -> str:
    peer = _PEERS["warm" if row.endswith("warm") else "cold"]
    if row in (*_PEERS.values(), "perf script"):
        return ""
    return spread(ratios(one.seconds[peer], one.seconds[row]), 1)


def _against_perf(one: Recording, row: str) -> str:
    if "perf script" not in one.seconds or row == "perf script" or row.startswith("libdwfl"):
        return ""
    return number(Spread.of(ratios(one.seconds["perf script"], one.seconds[row])).median, 1)


def _whole(one: WholeFile) -> str:
    if one.missing:
        return f"  whole file not run: {one.missing}"
    return (
        f"  {one.path}, all {one.functions:,} FDEs into {one.rows:,} rows: {one.ours_s:.2f} s, pyelftools {one.pyelftools_s:.1f} s"
        f" ({one.pyelftools_s / one.ours_s:.0f} times)"
    )


def as_json(recordings: Sequence[Recording], whole: WholeFile) -> dict[str, Any]:
    return {
        "recordings": [
            {
                "name": one.name,
                "missing": one.missing,
                "samples": one.samples,
                "frames": one.frames,
                "differ": one.differ,
                "made_up": one.made_up,
                "unwindstack_differ": one.unwindstack_differ,
                "seconds": one.seconds,
            }
            for one in recordings
        ],
        "whole_file": {
            "path": str(whole.path),
            "functions": whole.functions,
            "rows": whole.rows,
            "ours_s": whole.ours_s,
            "pyelftools_s": whole.pyelftools_s,
            "missing": whole.missing,
        },
    }
