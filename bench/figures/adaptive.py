"""What --adaptive costs beside evidence of all stacks, by BPF, at 200,000 allocations a second of a program that leaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.agent import Installation, bpf_lines, run_command
from bench.figures.shim import run_untraced, work_per_second
from bench.programs import Program, compile_c
from bench.spread import Spread, differences, ratios
from bench.table import losses, number, render, spread
from memleak_android.host.tracers.agent.session_options import SessionOptions

RATE = 200_000  # allocations per second of the undisturbed program's CPU
SECONDS = 3.0
STACKS = (64, 16_384)
HELD, LEAK_EVERY = 12, 500  # of bench/workloads/paced.c
_PROBED = ("malloc", "free")


@dataclass(frozen=True, slots=True)
class Way:
    """Options of a session. evidence: the stacks that send it."""

    name: str
    every_stack: bool = False
    lines: tuple[str, ...] = ()


WAYS = (
    Way("accounting", lines=("no_evidence 1",)),
    Way("adaptive", lines=("adaptive 1",)),
    Way("once a stack"),
    Way("full", every_stack=True),
    Way("adaptive full", every_stack=True, lines=("adaptive 1",)),
)


@dataclass(slots=True)
class Cost:
    """CPU seconds of target and agent, one value a round, without the loading of the BPF programs."""

    cpu_s: list[float] = field(default_factory=list)
    evidence: int = 0
    lost: list[Mapping[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Load:
    """One program under every way."""

    program: Program
    untraced_s: list[float] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=lambda: {way.name: Cost() for way in WAYS})

    def added_s(self, way: str) -> list[float]:
        return differences(self.costs[way].cpu_s, self.untraced_s)

    def run(self, here: Installation) -> None:
        self.untraced_s.append(run_untraced(self.program).cpu_s)
        for way in WAYS:
            options = SessionOptions(command=self.program.argv, every_stack=way.every_stack)
            lines, _ = bpf_lines(options, way.lines, only=_PROBED)
            outcome = run_command("bpf", lines, here)
            cost = self.costs[way.name]
            cost.cpu_s.append(outcome.cpu_s - outcome.setup_cpu_s)
            cost.evidence = outcome.evidence
            cost.lost.append(outcome.lost)


def measure(rounds: int, here: Installation, folder: Path) -> list[Load]:
    program = str(compile_c("paced", folder))
    work = str(int(work_per_second(folder) / RATE))
    count = str(int(RATE * SECONDS))
    loads = [
        Load(Program(f"{n} stacks", (program, count, work, str(n), str(HELD), str(LEAK_EVERY))))
        for n in STACKS
    ]
    for _ in range(rounds):
        for load in loads:
            load.run(here)
    return loads


def as_text(loads: Sequence[Load]) -> str:
    heading = ("", "evidence", "added CPU s", "records", "lost", "added / full")
    rows = [_row(load, way.name) for load in loads for way in WAYS]
    wanted = "  wanted: adaptive at most 0.50 of full"
    return "\n".join([render(heading, rows), "", wanted])


def _row(load: Load, way: str) -> tuple[str, ...]:
    cost, added = load.costs[way], load.added_s(way)
    share = spread(ratios(added, load.added_s("full")), 3)
    return (
        load.program.name,
        way,
        number(Spread.of(added).median, 3),
        f"{cost.evidence:,}",
        losses(cost.lost),
        share,
    )


def as_json(loads: Sequence[Load]) -> dict[str, Any]:
    return {
        "unit": "seconds of CPU: target and agent without loading, one value a round",
        "rate": RATE,
        "loads": [
            {
                "argv": load.program.argv,
                "untraced_s": load.untraced_s,
                "ways": {name: asdict(cost) for name, cost in load.costs.items()},
            }
            for load in loads
        ],
    }
