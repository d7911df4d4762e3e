"""Unwinding sampled stacks: ours beside libdwfl (one Dwfl kept for each address space), perf script and AOSP's, paired."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.clocks import children_cpu_s
from bench.figures.unwind_once import Samples, unwind
from bench.figures.whole_file import WholeFile
from bench.spread import Spread, number, ratios, render, spread
from tests.support.oracles import dwfl as dwfl_oracle
from tests.support.perf_recordings import clang, python, record

UNWINDSTACK = "MEMLEAK_UNWINDSTACK"  # names bench/figures/unwindstack_samples.cc, built (docs/contributing/benchmarks.md)
PASSES = 4  # the first is cold, the best of the others is warm
ROWS = (
    "libdwfl cold", "libdwfl warm", "libunwindstack cold", "libunwindstack warm", "perf script",
    "compiled cold", "compiled cold, cached", "compiled warm",
)  # fmt: skip
_PEERS = {"cold": "libdwfl cold", "warm": "libdwfl warm"}


@dataclass(slots=True)
class Recording:
    """A perf.data to be unwound. missing: why there is none."""

    name: str
    path: Path
    samples: int = 0
    frames: int = 0
    differ: int = 0
    made_up: int = 0  # chains that libdwfl goes on with where no code is
    unwindstack_differ: int | None = (
        None  # chains of libunwindstack that are not libdwfl's; None: it is not run
    )
    missing: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of each row, by round


def make_recordings(folder: Path) -> list[Recording]:
    """Made anew: they hold the addresses of this machine's files."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        "clang 16 KB": (lambda: clang(folder, 100), 16384, 4000),
        "clang 64 KB": (lambda: clang(folder, 60), 65528, 1500),
        "python3 16 KB": (lambda: python(50), 16384, 4000),
        "python3 64 KB": (lambda: python(30), 65528, 1500),
    }
    made = []
    for name, (command, stack_bytes, frequency) in wanted.items():
        one = Recording(name, folder / f"{name.replace(' ', '-')}.data")
        try:
            record(one.path, command(), stack_bytes=stack_bytes, frequency=frequency)
        except LookupError as error:
            one.missing = str(error)
        made.append(one)
    return made


def compare(recordings: list[Recording], folder: Path) -> None:
    """Counts the chains that are not libdwfl's. Fills the cache of decoded rules, too."""
    program = dwfl_oracle.build(folder)
    for one in recordings:
        if not one.missing:
            samples = Samples(one.path, folder / "tables")
            traces, _ = unwind(samples, 2)
            theirs = _chains_by(program, folder, one, samples, passes=1)
            ours = dwfl_oracle.joined([dwfl_oracle.chains_of(trace) for trace in traces])
            one.samples, one.frames = len(ours.offsets) - 1, len(ours.lookup)
            differ = dwfl_oracle.differences(ours, theirs)
            space = [number for batch in samples.batches for number in batch.space.tolist()]
            made_up = [i for i in differ if dwfl_oracle.is_made_up(ours, theirs, i, samples.spaces[space[i]])]
            one.differ, one.made_up = len(differ) - len(made_up), len(made_up)
            if peer := os.environ.get(UNWINDSTACK):
                others = _chains_by(Path(peer), folder, one, samples, passes=1)
                one.unwindstack_differ = len(dwfl_oracle.differences(others, theirs))


def measure(rounds: int, recordings: list[Recording], folder: Path) -> None:
    """Adds a round's seconds to each row, one after the other."""
    program = dwfl_oracle.build(folder)
    for _ in range(rounds):
        for one in recordings:
            if not one.missing:
                _measure_round(one, folder, program)


def _measure_round(one: Recording, folder: Path, program: Path) -> None:
    samples = Samples(one.path, None)
    theirs = _chains_by(program, folder, one, samples, passes=PASSES).seconds
    _add(one, "libdwfl cold", theirs[0])
    _add(one, "libdwfl warm", min(theirs[1:]))
    if peer := os.environ.get(UNWINDSTACK):
        others = _chains_by(Path(peer), folder, one, samples, passes=PASSES).seconds
        _add(one, "libunwindstack cold", others[0])
        _add(one, "libunwindstack warm", min(others[1:]))
    del samples
    cold, *warm = _ours(one, "-")
    _add(one, "compiled cold", cold)
    _add(one, "compiled warm", min(warm))
    _add(one, "compiled cold, cached", _ours(one, str(folder / "tables"))[0])
    if perf := _perf_script(one):
        _add(one, "perf script", perf)


def _add(one: Recording, row: str, seconds: float) -> None:
    one.seconds.setdefault(row, []).append(seconds)


def _chains_by(
    program: Path, folder: Path, one: Recording, samples: Samples, *, passes: int
) -> dwfl_oracle.Chains:
    return dwfl_oracle.unwind_by_dwfl(
        program, folder, samples.batches, samples.spaces, samples.files, one.path, passes=passes
    )


def _ours(one: Recording, tables: str) -> list[float]:
    command = [sys.executable, "-m", "bench.figures.unwind_once", str(one.path), tables, str(PASSES)]
    environment = dict(os.environ, OPENBLAS_NUM_THREADS="1")
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seconds: list[float] = json.loads(done.stdout)["seconds"]
    return seconds


def _perf_script(one: Recording) -> float:
    """Cost of its frames: the time with them minus the time without."""
    command = ["perf", "script", "--no-inline", "-i", str(one.path), "-F"]
    with_frames = _cpu([*command, "tid,time,ip"])
    return max(with_frames - _cpu([*command, "tid,time"]), 0)


def _cpu(command: list[str]) -> float:
    before = children_cpu_s()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return children_cpu_s() - before


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
    return {"recordings": [asdict(one) for one in recordings], "whole_file": asdict(whole)}
