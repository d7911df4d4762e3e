"""Cost of evidence over plain accounting, by BPF: real programs, and a sweep of the allocation rate."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.agent import Installation, bpf_lines, run_command
from bench.figures.shim import environment_lines, run_untraced, work_per_second
from bench.programs import Program, compile_c, paced
from bench.spread import Spread, crossing, losses, number, ratios, render, spread
from memleak_android.host.tracers.agent.session_options import SessionOptions

RATES = (1_000, 10_000, 50_000, 300_000)  # allocations per second of CPU
STACKS = 64
SECONDS = 0.4  # CPU of the undisturbed program
LIMIT = 1.03
UNTRACED_ROUNDS = 3  # they give the rate, no ratio
_PROBED = ("malloc", "calloc", "realloc", "free")  # what the real programs call
_PACED = ("malloc", "free")


@dataclass(slots=True)
class Comparison:
    """One program: CPU seconds of target and agent, without the loading of the BPF programs."""

    program: Program
    rate: float = 0.0  # allocations per second of the undisturbed program's CPU
    untraced_s: list[float] = field(default_factory=list)
    inexact_s: list[float] = field(default_factory=list)  # accounting by keys that need no frame rules
    off_s: list[float] = field(default_factory=list)  # accounting by the same keys as with evidence
    on_s: list[float] = field(default_factory=list)
    evidence: int = 0
    probed: tuple[str, ...] = _PROBED
    lost: list[Mapping[str, int]] = field(default_factory=list)

    @property
    def ratio(self) -> list[float]:
        return ratios(self.on_s, self.off_s)

    @property
    def ratio_to_inexact(self) -> list[float]:
        return ratios(self.on_s, self.inexact_s)

    def run(self, here: Installation) -> None:
        if len(self.untraced_s) < UNTRACED_ROUNDS:
            self.untraced_s.append(run_untraced(self.program).cpu_s)
        sides = (self.inexact_s, ("no_evidence 2",)), (self.off_s, ("no_evidence 1",)), (self.on_s, ())
        for into, extra in sides:
            options = SessionOptions(command=self.program.argv)
            lines, _ = bpf_lines(options, [*extra, *environment_lines(self.program)], only=self.probed)
            outcome = run_command("bpf", lines, here)
            into.append(outcome.cpu_s - outcome.setup_cpu_s)
        self.rate = outcome.allocations / min(self.untraced_s)
        self.evidence = outcome.evidence
        self.lost.append(outcome.lost)


def measure(rounds: int, programs: Sequence[Program], here: Installation) -> list[Comparison]:
    comparisons = [
        Comparison(program, probed=_PACED if program.name.startswith("paced") else _PROBED)
        for program in programs
        if not program.missing
    ]
    for _ in range(rounds):
        for one in comparisons:
            one.run(here)
    return comparisons


def sweep(folder: Path) -> list[Program]:
    """The same program at the rates of RATES, all of them SECONDS long on this machine."""
    compile_c("paced", folder)
    work = work_per_second(folder)
    return [
        paced(folder, f"paced {rate // 1000}k/s", int(rate * SECONDS), int(work / rate), STACKS)
        for rate in RATES
    ]


def rate_of_crossing(comparisons: Sequence[Comparison]) -> float | None:
    """Returns the lowest rate at which evidence costs more than LIMIT; None if no measured rate does."""
    points = sorted((one.rate, sorted(one.ratio)[len(one.ratio) // 2]) for one in comparisons)
    return crossing(points, LIMIT)


def as_json(programs: Sequence[Comparison], swept: Sequence[Comparison]) -> dict[str, Any]:
    return {
        "unit": "seconds of CPU: target and agent without loading, one value a round",
        "programs": [_one(comparison) for comparison in programs],
        "sweep": [_one(comparison) for comparison in swept],
        "limit": LIMIT,
        "rate_of_crossing": rate_of_crossing(swept),
    }


def as_text(programs: Sequence[Comparison], swept: Sequence[Comparison]) -> str:
    heading = (
        *("", "allocs/s", "untraced", "inexact", "off", "on", "records", "lost", "on / off"),
        *("on / inexact",),
    )
    crossed = rate_of_crossing(swept)
    where = f"from {number(crossed, 0)} allocations/s on" if crossed else "at none of the rates measured"
    return "\n".join(
        [
            render(heading, [_row(one.program.name, one) for one in [*programs, *swept]]),
            "",
            f"  evidence costs more than {LIMIT - 1:.0%} of CPU {where}   [at most 1.03 on real programs]",
        ]
    )


def _row(name: str, one: Comparison) -> tuple[str, ...]:
    medians = [Spread.of(values).median for values in (one.untraced_s, one.inexact_s, one.off_s, one.on_s)]
    return (
        name,
        number(one.rate, 0),
        *(number(value, 3) for value in medians),
        f"{one.evidence:,}",
        losses(one.lost),
        spread(one.ratio, 3),
        spread(one.ratio_to_inexact, 3),
    )


def _one(one: Comparison) -> dict[str, Any]:
    ratios_by_round = {"ratio": one.ratio, "ratio_to_inexact": one.ratio_to_inexact}
    return {"argv": one.program.argv, **asdict(one), **ratios_by_round}
