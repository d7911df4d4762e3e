"""`fleet report` over many recordings: how many a minute, what two workers are against one, what a distinct stack costs."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.clocks import children_cpu_s
from bench.figures.report import run_measured
from bench.spread import number, ratios, render, spread

RECORDINGS = 48
STACKS, BLOCKS = (2_000, 4_000, 8_000, 16_000), 50_000
AT_ONCE = 3  # recordings of one size that one worker works on, for its CPU and memory


@dataclass(frozen=True, slots=True)
class Run:
    """One `fleet report` from nothing. seconds: wall clock; cpu_s: of all its processes; rss: of the largest of them, MB."""

    jobs: int
    seconds: float
    cpu_s: float
    rss: float


@dataclass(frozen=True, slots=True)
class Size:
    """One worker on recordings of so many stacks. cpu_s: each, by round. rss: MB, the largest."""

    stacks: int
    megabytes: float
    cpu_s: list[float]
    rss: float


@dataclass(frozen=True, slots=True)
class Figures:
    recordings: int
    megabytes: float
    runs: list[list[Run]]  # by round: one worker, then two, or the other way about
    sizes: list[Size]

    def of_jobs(self, jobs: int) -> list[Run]:
        return [run for one in self.runs for run in one if run.jobs == jobs]


def measure(rounds: int, folder: Path) -> Figures:
    """One worker and two by turns, so that both meet the same machine."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bases = [_recording(folder / f"base-{stacks}.memleak", stacks) for stacks in STACKS]
    farm = _farm(bases[:2], folder / "farm")
    megabytes = sum(path.stat().st_size for path in farm.iterdir()) / 1e6
    runs = []
    for i in range(rounds):
        order = (1, 2) if i % 2 == 0 else (2, 1)
        runs.append([_run(farm, folder / "dataset", jobs) for jobs in order])
    by_size = [[_one_worker(base) for base in bases] for _ in range(rounds)]
    sizes = [
        Size(
            stacks,
            base.stat().st_size / 1e6,
            [row[i][0] for row in by_size],
            max(row[i][1] for row in by_size),
        )
        for i, (stacks, base) in enumerate(zip(STACKS, bases, strict=True))
    ]
    return Figures(RECORDINGS, megabytes, runs, sizes)


def _recording(path: Path, stacks: int) -> Path:
    run_measured("tests.support.builders.large_recording", str(path), str(BLOCKS), str(stacks))
    return path


def _farm(bases: Sequence[Path], into: Path) -> Path:
    """Recordings of two sizes in turn. Equal bytes are worked on all the same: only the merge drops them."""
    into.mkdir()
    for i in range(RECORDINGS):
        shutil.copy(bases[i % len(bases)], into / f"{i:03}.memleak")
    return into


def _run(farm: Path, dataset: Path, jobs: int) -> Run:
    shutil.rmtree(dataset, ignore_errors=True)
    words = ("fleet", "report", str(farm), "--dataset", str(dataset), "--jobs", str(jobs), "-q")
    seconds, cpu_s, rss = run_measured("memleak_android.host", *words, "-o", f"{dataset}.txt", "--force")
    return Run(jobs, seconds, cpu_s, rss * 1024 / 1e6)


def _one_worker(recording: Path) -> tuple[float, float]:
    """CPU seconds for each recording after the first, and the peak of the worker's memory in MB."""
    command = [sys.executable, "-m", "bench.figures.fleet", str(recording), str(AT_ONCE)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cpu_s, rss = done.stdout.split()
    return float(cpu_s), float(rss)


def _work(path: str, count: int) -> None:
    """In a process of its own: as a worker that has its imports behind it and the symbols of earlier recordings on disk."""
    from memleak_android.host.fleet.processing import Settings, process
    from memleak_android.host.fleet.sources import list_sources

    (one,), _ = list_sources([path])
    process(one, Settings())
    before = children_cpu_s(resource.RUSAGE_SELF)
    for _ in range(count):
        process(one, Settings())
    used_s = children_cpu_s(resource.RUSAGE_SELF) - before
    print(used_s / count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)


def line_through(sizes: Sequence[Size]) -> tuple[float, float, float]:
    """Seconds of a recording without stacks, seconds of 1,000 stacks, and the share of the spread that this explains (R²)."""
    stacks = np.array([one.stacks for one in sizes], float) / 1000
    cpu = np.array([float(np.median(one.cpu_s)) for one in sizes])
    slope, start = np.polyfit(stacks, cpu, 1)
    rest = cpu - (start + slope * stacks)
    return float(start), float(slope), float(1 - np.sum(rest**2) / np.sum((cpu - cpu.mean()) ** 2))


def as_text(figures: Figures) -> str:
    rows = []
    for jobs in (1, 2):
        runs = figures.of_jobs(jobs)
        rows.append(
            (
                f"{jobs} worker{'s' * (jobs > 1)}",
                spread([figures.recordings * 60 / run.seconds for run in runs], 0),
                spread([figures.megabytes / run.cpu_s for run in runs], 2),
                number(max(run.rss for run in runs), 0),
            )
        )
    one, two = ([run.seconds for run in figures.of_jobs(jobs)] for jobs in (1, 2))
    sizes = [
        (
            f"{size.stacks:,} stacks",
            number(size.megabytes, 2),
            spread([s * 1000 for s in size.cpu_s], 0),
            number(size.rss, 0),
        )
        for size in figures.sizes
    ]
    start, slope, share = line_through(figures.sizes)
    return "\n".join(
        [
            f"  {figures.recordings} recordings of {figures.megabytes:.1f} MB; load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} CPUs",
            render(("", "recordings/min", "MB/s of CPU", "MB resident"), rows),
            f"  two workers are {spread(ratios(one, two), 2)} times as fast as one",
            render(("one worker", "MB", "CPU ms each", "MB resident"), sizes),
            f"  {start * 1000:.0f} ms and {slope * 1000:.1f} ms per 1,000 stacks, R² {share:.4f}",
        ]
    )


def as_json(figures: Figures) -> dict[str, Any]:
    start, slope, share = line_through(figures.sizes)
    return asdict(figures) | {"fit": {"start_s": start, "per_1000_stacks_s": slope, "r2": share}}


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
