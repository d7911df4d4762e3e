"""Added CPU of whole programs under the shim: every allocation recorded, one sample per 64 KB, and heaptrack."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.agent import Installation, Outcome, preload_lines, run_command
from bench.clocks import children_cpu_s
from bench.peers import run_heaptrack
from bench.programs import Program, compile_c, paced, real_programs
from bench.spread import Spread, differences, losses, number, ratios, render, spread
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


def as_json(all_runs: list[Runs]) -> dict[str, Any]:
    return {
        "unit": "seconds of CPU: target and tracer until the recording is closed, one value a round",
        "programs": {
            runs.program.name: {
                "argv": runs.program.argv,
                "allocations": runs.allocations,
                "rate": runs.rate,
                "cpu_s": {name: runs.cpu_s(name) for name in runs.outcomes},
                "wall_s": {name: [one.wall_s for one in some] for name, some in runs.outcomes.items()},
                "host_cpu_s": [one.host_cpu_s for one in runs.outcomes[EVERY]],
                "evidence": [one.evidence for one in runs.outcomes[EVERY]],
                "lost": [dict(one.lost) for one in runs.outcomes[EVERY]],
                "heaptrack_over_ours": _against_heaptrack(runs),
                "heaptrack_over_ours_without_launch": _without_launch(runs, all_runs),
                "sampled_over_untraced": _sampled(runs),
            }
            for runs in all_runs
        },
    }


def as_text(all_runs: list[Runs]) -> str:
    measured = [runs for runs in all_runs if runs.program is not LAUNCH]
    heading = ("", "allocs", "M/s", UNTRACED, f"+ {EVERY}", "ns each", f"+ {HEAPTRACK}", f"+ {SAMPLED}")
    lines = [render((*heading, "records", "host", "lost"), [_row(runs) for runs in all_runs]), ""]
    if HEAPTRACK in all_runs[0].outcomes:
        rows = [
            (
                runs.program.name,
                spread(_against_heaptrack(runs), 2),
                spread(_without_launch(runs, all_runs), 2),
            )
            for runs in measured
        ]
        head = (f"added CPU, {HEAPTRACK} / {EVERY}   [at least 8]", "all", f"less that of {LAUNCH.name}")
        lines += [render(head, rows), ""]
    lines.append(f"  CPU, {SAMPLED} / {UNTRACED}   [below 1.03 under 1 M allocations/s]")
    lines += [f"  {runs.program.name:13}{spread(_sampled(runs), 3)}" for runs in measured]
    return "\n".join(lines)


def _row(runs: Runs) -> tuple[str, ...]:
    def added(name: str) -> str:
        return number(Spread.of(runs.added_s(name)).median, 3) if name in runs.outcomes else "not run"

    every = Spread.of(runs.added_s(EVERY)).median
    return (
        runs.program.name,
        f"{runs.allocations:,}",
        number(runs.rate / 1e6, 2),
        number(Spread.of(runs.cpu_s(UNTRACED)).median, 3),
        added(EVERY),
        number(every / runs.allocations * 1e9, 0) if runs.program is not LAUNCH else "",
        added(HEAPTRACK),
        added(SAMPLED),
        f"{runs.outcomes[EVERY][0].evidence:,}",
        number(Spread.of([one.host_cpu_s for one in runs.outcomes[EVERY]]).median, 3),
        losses([one.lost for one in runs.outcomes[EVERY]]),
    )


def _against_heaptrack(runs: Runs) -> list[float]:
    if HEAPTRACK not in runs.outcomes:
        return []
    return ratios(runs.added_s(HEAPTRACK), runs.added_s(EVERY))


def _without_launch(runs: Runs, all_runs: list[Runs]) -> list[float]:
    """The same, less what both add to a program that does nothing."""
    launch = next(one for one in all_runs if one.program is LAUNCH)
    if HEAPTRACK not in runs.outcomes:
        return []
    return ratios(
        differences(runs.added_s(HEAPTRACK), launch.added_s(HEAPTRACK)),
        differences(runs.added_s(EVERY), launch.added_s(EVERY)),
    )


def _sampled(runs: Runs) -> list[float]:
    return ratios(runs.cpu_s(SAMPLED), runs.cpu_s(UNTRACED))
