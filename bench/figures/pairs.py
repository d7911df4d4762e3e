"""Cost of one malloc+free pair under BPF probes: ours, empty probes as the floor, libbpf-tools' memleak."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.agent import Attached, Installation, bpf_lines
from bench.loop import LoopProcess
from bench.peers import AttachedMemleak
from bench.spread import Spread, differences, number, ratios, render, spread
from memleak_android.host.tracers.agent.session_options import SessionOptions

PAIRS = 20_000  # in a burst
BURSTS = 3  # in a session
WARM_UP = 2_000
CALLED = ("malloc", "free")


@dataclass(frozen=True, slots=True)
class Configuration:
    """How our agent is set up; what is not said is the default."""

    name: str
    about: str
    stack_bytes: int = 65528
    every_stack: bool = False
    extra: tuple[str, ...] = ()
    at_entry: bool = False


FLOOR = Configuration("floor", "empty programs at the same instructions", extra=("empty_probes 1",))
OURS_512 = Configuration("ours 512", "stack slices of 512 bytes", stack_bytes=512)
CONFIGURATIONS = (
    FLOOR,
    OURS_512,
    Configuration("ours", "the default"),
    Configuration("ours every", "a 512-byte slice with every allocation", stack_bytes=512, every_stack=True),
    Configuration("accounting", "no evidence", extra=("no_evidence 1",)),
    Configuration("floor at entry", "empty programs at offset 0", extra=("empty_probes 1",), at_entry=True),
    Configuration("ours at entry", "512 bytes, probes at offset 0", stack_bytes=512, at_entry=True),
)
PEER = "memleak"
# name → (numerator, denominator, the goal)
_RATIOS = {
    "memleak / ours 512": (PEER, OURS_512.name, "at least 6"),
    "ours 512 / floor": (OURS_512.name, FLOOR.name, "at most 1.3"),
    "memleak / ours at entry": (PEER, "ours at entry", "equal placement"),
    "ours every / floor": ("ours every", FLOOR.name, ""),
    "ours 512 / accounting": (OURS_512.name, "accounting", "evidence on / off"),
}


@dataclass(slots=True)
class Cost:
    """One configuration, a value per round. Nanoseconds per pair."""

    name: str
    about: str
    untraced_ns: list[float] = field(default_factory=list)  # same process, just before
    cpu_ns: list[float] = field(default_factory=list)  # the target's thread
    wall_ns: list[float] = field(default_factory=list)
    tracer_ns: list[float] = field(default_factory=list)  # CPU of the tracer meanwhile
    lost: int = 0

    @property
    def added_ns(self) -> list[float]:
        return differences(self.cpu_ns, self.untraced_ns)


def measure(rounds: int, loop: Path, here: Installation, peer: Sequence[str] | None) -> dict[str, Cost]:
    """Costs by the configuration's name. Every round runs each configuration once, on a process of its own."""
    costs = {one.name: Cost(one.name, one.about) for one in CONFIGURATIONS}
    if peer:
        costs[PEER] = Cost(PEER, "libbpf-tools")
    for _ in range(rounds):
        for one in CONFIGURATIONS:
            with LoopProcess(loop) as process:
                _measure_one(process, costs[one.name], _ours(one, process.pid, here))
        if peer:
            with LoopProcess(loop) as process:
                _measure_one(process, costs[PEER], AttachedMemleak(peer, process.pid))
    return costs


def placements(loop: Path) -> dict[str, int]:
    """How many probes of malloc and free are emulated, simulated or single-stepped on this machine."""
    with LoopProcess(loop) as process:
        _, probes = bpf_lines(SessionOptions(pid=process.pid), only=CALLED)
    return dict(Counter(cost for one in probes for cost in (one.entry_cost, one.return_cost) if cost))


def _ours(one: Configuration, pid: int, here: Installation) -> Attached:
    options = SessionOptions(pid=pid, stack_bytes=one.stack_bytes, every_stack=one.every_stack)
    lines, _ = bpf_lines(options, one.extra, one.at_entry, CALLED)
    return Attached(lines, here)


def _measure_one(process: LoopProcess, cost: Cost, tracer: Attached | AttachedMemleak) -> None:
    process.run(WARM_UP)
    cost.untraced_ns.append(process.best(PAIRS, BURSTS).cpu_ns)
    with tracer:
        process.run(WARM_UP)
        before = tracer.cpu_ns()
        best = process.best(PAIRS, BURSTS)
        cost.tracer_ns.append((tracer.cpu_ns() - before) / (PAIRS * BURSTS))
    cost.cpu_ns.append(best.cpu_ns)
    cost.wall_ns.append(best.wall_ns)
    if isinstance(tracer, Attached):
        cost.lost += tracer.lost()


def paired_ratios(costs: dict[str, Cost]) -> dict[str, list[float]]:
    """Of the CPU that a pair has more than untraced, by round."""
    return {
        name: ratios(costs[one].added_ns, costs[other].added_ns)
        for name, (one, other, _) in _RATIOS.items()
        if one in costs and other in costs
    }


def as_json(costs: dict[str, Cost]) -> dict[str, Any]:
    return {
        "unit": "ns per malloc+free pair, one value a round",
        "configurations": {name: asdict(cost) for name, cost in costs.items()},
        "ratios": paired_ratios(costs),
    }


def as_text(costs: dict[str, Cost]) -> str:
    heading = ("", "untraced", "CPU of the thread", "min", "wall", "CPU of the tracer", "lost", "")
    rows = [
        (
            cost.name,
            number(Spread.of(cost.untraced_ns).median),
            number(Spread.of(cost.cpu_ns).median),
            number(Spread.of(cost.cpu_ns).low),
            number(Spread.of(cost.wall_ns).median),
            number(Spread.of(cost.tracer_ns).median),
            str(cost.lost),
            cost.about,
        )
        for cost in costs.values()
    ]
    lines = [render(heading, rows), "", "  added CPU per pair, paired by round: median (min … max)"]
    lines += [
        f"  {name:26}{spread(values, 2)}" + (f"   [{_RATIOS[name][2]}]" if _RATIOS[name][2] else "")
        for name, values in paired_ratios(costs).items()
    ]
    return "\n".join(lines)
