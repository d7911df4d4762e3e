"""A report of a large recording: time and memory of the whole program by format."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.spread import number, render

BLOCKS, STACKS = 10_000_000, 1_000_000
FORMATS = ("text", "html", "json")


@dataclass(frozen=True, slots=True)
class Cost:
    """seconds: wall clock, cpu_s: user and system. rss, written: MB."""

    format: str
    seconds: float
    cpu_s: float
    rss: float
    written: float


# A process of its own: a child's largest resident set begins at its parent's.
_MEASURE = """
import resource, subprocess, sys, time
begin = time.monotonic()
subprocess.run([sys.executable, "-m", *sys.argv[1:]], check=True, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def measure(folder: Path) -> tuple[float, list[Cost]]:
    """The recording's size in MB, and what each format costs."""
    folder.mkdir(parents=True, exist_ok=True)
    recording = folder / f"large-{BLOCKS}-{STACKS}.memleak"
    if not recording.exists():
        run_measured("tests.support.builders.large_recording", str(recording), str(BLOCKS), str(STACKS))
    costs = []
    for form in FORMATS:
        path = folder / f"large.{form}"
        seconds, cpu_s, rss = run_measured(
            "memleak_android.host", "report", str(recording), "--format", form, "-o", str(path), "--force"
        )
        costs.append(Cost(form, seconds, cpu_s, rss * 1024 / 1e6, path.stat().st_size / 1e6))
        path.unlink()
    return recording.stat().st_size / 1e6, costs


def run_measured(*arguments: str) -> list[float]:
    """Seconds, CPU seconds, largest resident set in KiB."""
    command = [sys.executable, "-c", _MEASURE, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in done.stdout.split()]


def as_text(recording_mb: float, costs: Sequence[Cost]) -> str:
    head = (
        f"  {BLOCKS:,} live blocks, {STACKS:,} stacks, {recording_mb:,.0f} MB; load {os.getloadavg()[0]:.1f}"
    )
    rows = [
        (one.format, number(one.seconds), number(one.cpu_s), number(one.rss, 0), number(one.written))
        for one in costs
    ]
    return "\n".join([head, render(("", "seconds", "CPU s", "MB resident", "MB written"), rows)])
