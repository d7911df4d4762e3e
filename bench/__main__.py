"""`python -m bench [FIGURE …]`: measures, prints tables, writes build/bench/FIGURE.json. Nothing here passes or fails."""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import machine, programs
from bench.agent import Installation
from bench.figures import (
    attach,
    every_process,
    evidence,
    fleet,
    pairs,
    reachability,
    report,
    shim,
    snoop,
    unwind,
    unwind_arches,
    whole_file,
)
from bench.peers import find_memleak
from tests.support.oracles import dwfl as dwfl_oracle

FOLDER = Path("build/bench").absolute()


@dataclass(frozen=True, slots=True)
class Request:
    here: Installation
    rounds: int
    peer: str | None
    megabytes: Sequence[int]


def measure_pairs(request: Request) -> tuple[str, dict[str, Any]]:
    """One malloc+free pair under BPF probes."""
    loop = programs.compile_c("loop", FOLDER)
    memleak, origin = find_memleak(request.peer, FOLDER / "peer")
    probed = pairs.placements(loop)
    costs = pairs.measure(request.rounds, loop, request.here, memleak)
    head = [
        f"  probes hit by a pair: {', '.join(f'{count} {cost}' for cost, count in probed.items())}",
        f"  peer: {origin}" if memleak else f"  peer not run: {origin}",
    ]
    result = {"placements": probed, "peer": origin, **pairs.as_json(costs)}
    return "\n".join([*head, pairs.as_text(costs)]), result


def measure_shim(request: Request) -> tuple[str, dict[str, Any]]:
    """Whole programs under the shim, CPU of target and tracer in seconds."""
    chosen = shim.workloads(FOLDER)
    runs = shim.measure(request.rounds, chosen, request.here)
    result = {
        "left_out": _left_out(chosen),
        "peer": shim.heaptrack_missing(),
        **shim.as_json(runs),
    }
    head = [f"  {line}" for line in _left_out(chosen)]
    if reason := shim.heaptrack_missing():
        head.append(f"  peer not run: {reason}")
    return "\n".join([*head, shim.as_text(runs)]), result


def measure_evidence(request: Request) -> tuple[str, dict[str, Any]]:
    """Evidence on against evidence off by BPF, CPU of target and agent in seconds."""
    chosen = programs.real_programs(FOLDER, 1_500_000, 100_000)
    programs_compared = evidence.measure(request.rounds, chosen, request.here)
    swept = evidence.measure(request.rounds, evidence.sweep(FOLDER), request.here)
    head = [f"  {line}" for line in _left_out(chosen)]
    text = "\n".join([*head, evidence.as_text(programs_compared, swept)])
    return text, {"left_out": _left_out(chosen), **evidence.as_json(programs_compared, swept)}


def measure_unwind(request: Request) -> tuple[str, dict[str, Any]]:
    """Sampled stacks unwound, CPU of one core."""
    if reason := dwfl_oracle.missing():
        return f"  not run: {reason}", {"missing": reason}
    folder = FOLDER / "unwind"
    recordings = unwind.make_recordings(folder)
    unwind.compare(recordings, folder)
    unwind.measure(request.rounds, recordings, folder)
    decoded = whole_file.measure()
    return unwind.as_text(recordings, decoded), unwind.as_json(recordings, decoded)


def _left_out(chosen: Sequence[programs.Program]) -> list[str]:
    return [f"{one.name} not run: {one.missing}" for one in chosen if one.missing]


def measure_arches(request: Request) -> tuple[str, dict[str, Any]]:
    """The warm unwinder by architecture, one core."""
    costs = unwind_arches.measure(request.rounds)
    return unwind_arches.as_text(costs), {"ns_per_frame": [asdict(cost) for cost in costs]}


def measure_snoop(request: Request) -> tuple[str, dict[str, Any]]:
    """One call of a snooped function, entry and return."""
    program = programs.compile_c("called", FOLDER)
    costs = snoop.measure(request.rounds, program, request.here, FOLDER)
    return snoop.as_text(costs), {"ways": [asdict(cost) for cost in costs]}


def measure_report(request: Request) -> tuple[str, dict[str, Any]]:
    """A report of a recording with many blocks and stacks, once by format."""
    recording_mb, costs = report.measure(FOLDER / "report")
    return report.as_text(recording_mb, costs), {
        "recording_mb": recording_mb,
        "formats": [asdict(cost) for cost in costs],
    }


def measure_attach(request: Request) -> tuple[str, dict[str, Any]]:
    """A running program attached to and left: how long it stands still."""
    program = programs.compile_c("heartbeats", FOLDER)
    costs = attach.measure(request.rounds, program, request.here, FOLDER)
    return attach.as_text(costs), attach.as_json(costs)


def measure_all(request: Request) -> tuple[str, dict[str, Any]]:
    """Programs beside a session of every process, CPU of each and all its children in seconds."""
    loads = every_process.measure(request.rounds, FOLDER)
    return every_process.as_text(loads), every_process.as_json(loads)


def measure_fleet(request: Request) -> tuple[str, dict[str, Any]]:
    """Many recordings merged: recordings a minute, one worker and two by turns, cost by distinct stacks."""
    figures = fleet.measure(request.rounds, FOLDER / "fleet")
    return fleet.as_text(figures), fleet.as_json(figures)


def measure_reachability(request: Request) -> tuple[str, dict[str, Any]]:
    """A process stopped and its memory searched, beside copies of the same memory: how long it stands still."""
    heaps = reachability.measure(request.rounds, request.here, FOLDER, request.megabytes)
    return reachability.as_text(heaps), reachability.as_json(heaps)


FIGURES: dict[str, Callable[[Request], tuple[str, dict[str, Any]]]] = {
    measure.__name__.removeprefix("measure_"): measure
    for measure in (
        *(measure_pairs, measure_shim, measure_evidence, measure_unwind, measure_arches, measure_snoop),
        *(measure_report, measure_attach, measure_all, measure_fleet, measure_reachability),
    )
}
_ROUNDS = {"attach": 20}  # a stop is short, and its worst case counts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)}; all by default"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="paired rounds (default 7; attach 20)")
    parser.add_argument(
        "--peer", default=os.environ.get("MEMLEAK_PEER"), metavar="PATH", help="libbpf-tools' memleak"
    )
    parser.add_argument(
        "--mb",
        type=int,
        nargs="+",
        default=reachability.MEGABYTES,
        metavar="N",
        help="heaps of reachability (default 100 1000)",
    )
    given = parser.parse_args(arguments)
    if unknown := set(given.figures) - set(FIGURES):
        parser.error(f"no figure {min(unknown)} (expected {', '.join(FIGURES)})")
    here = programs.install(FOLDER)
    about = machine.describe([here.agent, here.shim])
    print("\n".join(f"{name:9} {text}" for name, text in about.items()), flush=True)
    for name in given.figures or FIGURES:
        begin, disturbed = time.monotonic(), machine.foreign_probes()
        rounds = given.rounds or _ROUNDS.get(name, 7)
        text, result = FIGURES[name](Request(here, rounds, given.peer, given.mb))
        seconds = time.monotonic() - begin
        if disturbed or machine.foreign_probes():
            text = f"  disturbed: another tracer had probes in every process of this machine\n{text}"
            result["disturbed"] = True
        print(f"\n{name}: {FIGURES[name].__doc__} {rounds} rounds, {seconds:.0f} s\n{text}", flush=True)
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps({"machine": about, "seconds": seconds, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
