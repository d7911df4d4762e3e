"""`python -m bench [FIGURE …]`: measures, prints tables, writes build/bench/FIGURE.json. Nothing here passes or fails."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import (
    evidence,
    evidence_report,
    machine,
    pairs,
    pairs_report,
    programs,
    shim,
    shim_report,
    unwind,
    unwind_arches,
    unwind_report,
    whole_file,
)
from bench.agent import Installation
from bench.peers import find_memleak
from tests.support import dwfl_oracle

PLACE = Path("build/bench").absolute()


@dataclass(frozen=True, slots=True)
class Request:
    here: Installation
    rounds: int
    peer: str | None


def measure_pairs(request: Request) -> tuple[str, dict[str, Any]]:
    """One malloc+free pair under BPF probes."""
    loop = programs.compile_c("loop", PLACE)
    memleak, origin = find_memleak(request.peer, PLACE / "peer")
    probed = pairs.placements(loop)
    costs = pairs.measure(request.rounds, loop, request.here, memleak)
    head = [
        f"  probes hit by a pair: {', '.join(f'{count} {cost}' for cost, count in probed.items())}",
        f"  peer: {origin}" if memleak else f"  peer not run: {origin}",
    ]
    result = {"placements": probed, "peer": origin, **pairs_report.as_json(costs)}
    return "\n".join([*head, pairs_report.as_text(costs)]), result


def measure_shim(request: Request) -> tuple[str, dict[str, Any]]:
    """Whole programs under the shim, CPU of target and tracer in seconds."""
    chosen = shim.workloads(PLACE)
    runs = shim.measure(request.rounds, chosen, request.here)
    result = {
        "left_out": _left_out(chosen),
        "peer": shim.heaptrack_missing(),
        **shim_report.as_json(runs),
    }
    head = [f"  {line}" for line in _left_out(chosen)]
    if reason := shim.heaptrack_missing():
        head.append(f"  peer not run: {reason}")
    return "\n".join([*head, shim_report.as_text(runs)]), result


def measure_evidence(request: Request) -> tuple[str, dict[str, Any]]:
    """Evidence on against evidence off by BPF, CPU of target and agent in seconds."""
    chosen = evidence.real(PLACE)
    programs_compared = evidence.measure(request.rounds, chosen, request.here)
    swept = evidence.measure(request.rounds, evidence.sweep(PLACE), request.here)
    head = [f"  {line}" for line in _left_out(chosen)]
    text = "\n".join([*head, evidence_report.as_text(programs_compared, swept)])
    return text, {"left_out": _left_out(chosen), **evidence_report.as_json(programs_compared, swept)}


def measure_unwind(request: Request) -> tuple[str, dict[str, Any]]:
    """Sampled stacks unwound, CPU of one core."""
    if reason := dwfl_oracle.missing():
        return f"  not run: {reason}", {"missing": reason}
    place = PLACE / "unwind"
    recordings = unwind.make_recordings(place)
    unwind.compare(recordings, place)
    unwind.measure(request.rounds, recordings, place)
    decoded = whole_file.measure()
    return unwind_report.as_text(recordings, decoded), unwind_report.as_json(recordings, decoded)


def _left_out(chosen: Sequence[programs.Program]) -> list[str]:
    return [f"{one.name} not run: {one.missing}" for one in chosen if one.missing]


def measure_arches(request: Request) -> tuple[str, dict[str, Any]]:
    """The warm unwinder by architecture, one core."""
    costs = unwind_arches.measure(request.rounds)
    return unwind_arches.as_text(costs), {"ns_per_frame": [asdict(cost) for cost in costs]}


FIGURES: dict[str, Callable[[Request], tuple[str, dict[str, Any]]]] = {
    "pairs": measure_pairs,
    "shim": measure_shim,
    "evidence": measure_evidence,
    "unwind": measure_unwind,
    "arches": measure_arches,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)}; all by default"
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="paired rounds (default 7)")
    parser.add_argument(
        "--peer", default=os.environ.get("MEMLEAK_PEER"), metavar="PATH", help="libbpf-tools' memleak"
    )
    given = parser.parse_args(arguments)
    if unknown := set(given.figures) - set(FIGURES):
        parser.error(f"no figure {min(unknown)} (expected {', '.join(FIGURES)})")
    here = programs.install(PLACE)
    about = machine.describe([here.agent, here.shim])
    print("\n".join(f"{name:9} {text}" for name, text in about.items()), flush=True)
    for name in given.figures or FIGURES:
        begin, disturbed = time.monotonic(), machine.foreign_probes()
        text, result = FIGURES[name](Request(here, given.rounds, given.peer))
        seconds = time.monotonic() - begin
        if disturbed or machine.foreign_probes():
            text = f"  disturbed: another tracer had probes in every process of this machine\n{text}"
            result["disturbed"] = True
        print(f"\n{name}: {FIGURES[name].__doc__} {given.rounds} rounds, {seconds:.0f} s\n{text}", flush=True)
        path = PLACE / f"{name}.json"
        path.write_text(json.dumps({"machine": about, "seconds": seconds, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
