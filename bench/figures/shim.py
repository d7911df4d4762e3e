"""Added CPU of whole programs under the shim: every allocation recorded, one sample per 64 KB, and heaptrack."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from bench.agent import Installation, Outcome, preload_lines, run_command
from bench.clocks import children_cpu_s
from bench.peers import run_heaptrack
from bench.programs import Program, compile_c, paced, real_programs
from bench.spread import differences
from memleak_android.host.tracers.agent.session_options import SessionOptions

SAMPLE_BYTES = 65536
UNTRACED, EVERY, SAMPLED, HEAPTRACK = "untraced", "every allocation", "one in 64 KB", "heaptrack"


LAUNCH = Program("true", (shutil.which("true") or "/bin/true",))  # a session around nothing
PACES = (300_000, 900_000)  # allocations per second of CPU


@dataclass(slots=True)
class Runs:
    """All rounds of one program, by configuration."""

    program: Program
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)

    def cpu_s(self, name: str) -> list[float]:
        return [one.cpu_s for one in self.outcomes[name]]

    def added_s(self, name: str) -> list[float]:
        return differences(self.cpu_s(name), self.cpu_s(UNTRACED))

    @property
    def allocations(self) -> int:
        return self.outcomes[EVERY][0].allocations

    @property
    def rate(self) -> float:
        """Allocations per second of the undisturbed program's CPU."""
        return self.allocations / min(self.cpu_s(UNTRACED))


def heaptrack_missing() -> str:
    return "" if shutil.which("heaptrack") else "no heaptrack here (Debian: apt-get install heaptrack)"


def measure(rounds: int, programs: Sequence[Program], here: Installation) -> list[Runs]:
    """Every round runs every program in every configuration, one after the other."""
    all_runs = [Runs(program) for program in programs if not program.missing]
    for _ in range(rounds):
        for runs in all_runs:
            for name, outcome in _round(runs.program, here).items():
                runs.outcomes.setdefault(name, []).append(outcome)
    return all_runs


def _round(program: Program, here: Installation) -> dict[str, Outcome]:
    outcomes = {
        UNTRACED: run_untraced(program),
        EVERY: _run_shim(program, here, 0),
        SAMPLED: _run_shim(program, here, SAMPLE_BYTES),
    }
    if not heaptrack_missing():
        outcomes[HEAPTRACK] = run_heaptrack(
            program.argv, program.environment, here.recording.parent / "heaptrack"
        )
    return outcomes


def run_untraced(program: Program) -> Outcome:
    before, begin = children_cpu_s(), time.monotonic()
    subprocess.run(
        program.argv,
        check=True,
        env={**os.environ, **program.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    return Outcome(children_cpu_s() - before, time.monotonic() - begin)


def environment_lines(program: Program) -> list[str]:
    return [f"env {name}={quote(value, safe='')}" for name, value in program.environment.items()]


def _run_shim(program: Program, here: Installation, sample_bytes: int) -> Outcome:
    options = SessionOptions(command=program.argv, sample_bytes=sample_bytes)
    return run_command("preload", [*preload_lines(options, here.shim), *environment_lines(program)], here)


def workloads(folder: Path) -> list[Program]:
    """From PACES to several million allocations per second of CPU; first what every session costs."""
    compile_c("paced", folder)
    work = work_per_second(folder)
    evenly = [paced(folder, f"paced {pace // 1000}k/s", pace // 2, int(work / pace)) for pace in PACES]
    jq, sqlite, _ = real_programs(folder, 20_000_000, 100_000)
    python = real_programs(folder, 3_000_000, 100_000)[2]
    return [LAUNCH, *evenly, jq, sqlite, python]


def work_per_second(folder: Path) -> float:
    """Rounds of arithmetic of paced.c in a second of this machine's CPU."""
    work = 100_000_000
    return work / run_untraced(paced(folder, "calibration", 1, work)).cpu_s
