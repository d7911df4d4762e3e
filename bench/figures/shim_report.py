"""The table and the figures of bench/figures/shim.py."""

from typing import Any

from bench.figures.shim import EVERY, HEAPTRACK, LAUNCH, SAMPLED, UNTRACED, Runs
from bench.spread import Spread, differences, ratios
from bench.table import losses, number, render, spread


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
