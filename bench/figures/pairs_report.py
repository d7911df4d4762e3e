"""The table and the figures of bench/figures/pairs.py."""

from typing import Any

from bench.figures.pairs import FLOOR, OURS_512, PEER, Cost
from bench.spread import Spread, ratios
from bench.table import number, render, spread

# name → (numerator, denominator, the goal)
_RATIOS = {
    "memleak / ours 512": (PEER, OURS_512.name, "at least 6"),
    "ours 512 / floor": (OURS_512.name, FLOOR.name, "at most 1.3"),
    "memleak / ours at entry": (PEER, "ours at entry", "equal placement"),
    "ours every / floor": ("ours every", FLOOR.name, ""),
    "ours 512 / accounting": (OURS_512.name, "accounting", "evidence on / off"),
}


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
        "configurations": {
            name: {
                "about": cost.about,
                "untraced_ns": cost.untraced_ns,
                "cpu_ns": cost.cpu_ns,
                "wall_ns": cost.wall_ns,
                "tracer_ns": cost.tracer_ns,
                "lost": cost.lost,
            }
            for name, cost in costs.items()
        },
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
