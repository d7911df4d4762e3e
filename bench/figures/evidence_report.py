"""The tables of bench/figures/evidence.py."""

from collections.abc import Sequence
from typing import Any

from bench.figures.evidence import LIMIT, Comparison, rate_of_crossing
from bench.spread import Spread
from bench.table import losses, number, render, spread


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
        "",
        "allocs/s",
        "untraced",
        "inexact",
        "off",
        "on",
        "records",
        "lost",
        "on / off",
        "on / inexact",
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
    return {
        "argv": one.program.argv,
        "rate": one.rate,
        "untraced_s": one.untraced_s,
        "inexact_s": one.inexact_s,
        "off_s": one.off_s,
        "on_s": one.on_s,
        "evidence": one.evidence,
        "lost": [dict(lost) for lost in one.lost],
        "ratio": one.ratio,
        "ratio_to_inexact": one.ratio_to_inexact,
    }
