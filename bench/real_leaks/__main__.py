"""`python -m bench.real_leaks [CASE …]`: each case by each route and peer, a table, and build/real-leaks/results.json."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass

from bench import spread
from bench.programs import Program
from bench.real_leaks import peers, routes
from bench.real_leaks.cases import Case, load
from bench.real_leaks.install import FOLDER, Missing, program
from memleak_android.host.console import aligned

ROUTES = (*routes.ROUTES, *peers.PEERS)
RANK_MAX = 3
RATE_WITHIN = 0.1  # of the truth


@dataclass(frozen=True, slots=True)
class Row:
    """One version of one case by one tool. rate: over the truth; 0 = the tool gives none."""

    case: str
    version: str
    tool: str
    rank: int = 0
    rate: float = 0.0
    verdict: str = ""
    failed: str = ""


def measure(case: Case, chosen: Collection[str], seconds: float, screens: bool) -> Iterator[Row]:
    try:
        faulty, mended = program(case, case.faulty), program(case, case.mended)
        held = case.held_a_step or routes.rss_a_step(faulty, seconds) - routes.rss_a_step(mended, seconds)
    except Missing as missing:
        yield Row(case.id, case.faulty, "", failed=f"not run: {missing.reason}")
        return
    for tool in chosen:
        yield _one(case, case.faulty, tool, faulty, seconds, screens, held)
        if tool in routes.ROUTES:
            yield _one(case, case.mended, tool, mended, seconds, screens, held)


def _one(
    case: Case, version: str, tool: str, target: Program, seconds: float, screens: bool, held: float
) -> Row:
    folder = FOLDER / "runs" / f"{case.id}-{version}-{tool}"
    try:
        if tool in peers.PEERS:
            if reason := peers.missing(tool, target):
                return Row(case.id, version, tool, failed=reason)
            return Row(case.id, version, tool, peers.rank(tool, target, case.functions, seconds, folder))
        found = routes.run(tool, target, case.functions, seconds, folder)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return Row(case.id, version, tool, failed=" ".join(str(error).split())[-150:])
    if screens:
        print(found.screen)
    truth = held * found.steps_per_s
    rate = found.bytes_per_s / truth if truth > 0 and version == case.faulty else 0.0
    verdict = found.verdict.replace("_", " ") + ("" if found.is_complete else ", incomplete")
    return Row(case.id, version, tool, found.rank, rate, verdict)


def as_text(rows: Sequence[Row]) -> str:
    cells = [
        (
            f"{row.case} {row.version}",
            row.tool,
            str(row.rank or "-"),
            spread.number(row.rate, 2) if row.rate else "-",
            row.failed or row.verdict or "-",
        )
        for row in rows
    ]
    return "\n".join(aligned([("case", "tool", "rank", "rate/truth", "answer"), *cells], {0, 1, 4}))


def summary(cases: Sequence[Case], rows: Sequence[Row]) -> list[str]:
    """How many of the cases each tool got right."""
    faulty = {case.id: case.faulty for case in cases}
    lines = []
    for tool in dict.fromkeys(row.tool for row in rows if row.tool):
        own = [row for row in rows if row.tool == tool and not row.failed]
        bad = [row for row in own if row.version == faulty[row.case]]
        named = sum(0 < row.rank <= RANK_MAX for row in bad)
        line = f"{tool}: function within rank {RANK_MAX} in {named} of {len(bad)}"
        if tool in routes.ROUTES:
            right = sum(abs(row.rate - 1) <= RATE_WITHIN for row in bad)
            mended = [row for row in own if row.version != faulty[row.case]]
            alarms = sum(row.verdict.startswith("leaking") for row in mended)
            line += (
                f", rate within {RATE_WITHIN:.0%} in {right}, {alarms} of {len(mended)} mended called leaking"
            )
            clean = [row.case for row in bad if row.verdict == "not growing"]
            line += f", clean bills: {', '.join(clean) or 'none'}"
        lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.real_leaks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all by default")
    parser.add_argument("--tools", nargs="+", choices=ROUTES, default=ROUTES, help="all by default")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (default 20)")
    parser.add_argument("--screens", action="store_true", help="print our reports, too")
    given = parser.parse_args(arguments)
    cases, rows = load(given.cases), list[Row]()
    for case in cases:
        for row in measure(case, given.tools, given.seconds, given.screens):
            rows.append(row)
            print(as_text([row]).splitlines()[-1], flush=True)
    print("\n" + as_text(rows), *summary(cases, rows), sep="\n")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
