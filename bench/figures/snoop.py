"""Cost of one snooped call, compared with bpftrace: one function in a loop, paired rounds in one process."""

import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.agent import Installation
from bench.clocks import children_cpu_s
from bench.loop import LoopProcess
from bench.peers import Way, running
from bench.spread import render, spread

CALLS, EVENT_CALLS = 200_000, 50_000


@dataclass(slots=True)
class Cost:
    """By round. target_ns: added to a call on the calling thread's CPU clock; tool_ns: of the tool's processes."""

    name: str
    target_ns: list[float]
    tool_ns: list[float]
    wall_ns: list[float]


def ways(here: Installation, program: Path, pid: int, folder: Path) -> list[Way]:
    ours = (sys.executable, "-m", "memleak_android.host", "snoop", "--pid", str(pid), "-f", "called")
    ready = b"functions probed after"
    found = [
        Way("snoop --statistics", (*ours, "--statistics"), ready, CALLS),
        Way("snoop, entries only", (*ours, "--statistics", "--returns", "none"), ready, CALLS),
        Way(
            "snoop --returns instructions", (*ours, "--statistics", "--returns", "instructions"), ready, CALLS
        ),
        Way("snoop, lines", (*ours, "--arguments", "int,hex->int"), ready, EVENT_CALLS),
        Way("snoop --json", (*ours, "--json", str(folder / "calls.jsonl"), "--force"), ready, EVENT_CALLS),
    ]
    if shutil.which("bpftrace") is None:
        return found
    entry, leave = f"uprobe:{program}:called", f"uretprobe:{program}:called"
    histogram = (
        f"{entry} {{ @start[tid] = nsecs; }} {leave} /@start[tid]/ "
        "{ @ns = hist(nsecs - @start[tid]); @n = count(); delete(@start[tid]); }"
    )
    lines = (
        f"{entry} {{ @start[tid] = nsecs; @a[tid] = arg0; @b[tid] = arg1; }} {leave} /@start[tid]/ "
        '{ printf("%d called(%d, %x) = %d %d\\n", tid, @a[tid], @b[tid], retval, nsecs - @start[tid]); delete(@start[tid]); }'
    )
    attach = ("bpftrace", "-p", str(pid), "-e")
    return [
        *found,
        Way("bpftrace, hist()", (*attach, histogram), b"Attaching", CALLS),
        Way("bpftrace, entry count()", (*attach, f"{entry} {{ @n = count(); }}"), b"Attaching", CALLS),
        Way("bpftrace, printf()", (*attach, lines), b"Attaching", EVENT_CALLS),
    ]


def measure(rounds: int, program: Path, here: Installation, folder: Path) -> list[Cost]:
    """Each way once a round, next to an untraced burst of the same length."""
    costs: dict[str, Cost] = {}
    with LoopProcess(program) as loop:
        for _ in range(rounds):
            for way in ways(here, program, loop.pid, folder):
                untraced = loop.best(way.calls, 2)
                before = children_cpu_s()
                traced = _traced(way, loop, folder)
                cost = costs.setdefault(way.name, Cost(way.name, [], [], []))
                cost.target_ns.append(traced[0] - untraced.cpu_ns)
                cost.wall_ns.append(traced[1] - untraced.wall_ns)
                cost.tool_ns.append((children_cpu_s() - before) * 1e9 / (2 * way.calls))
    return list(costs.values())


def _traced(way: Way, loop: LoopProcess, folder: Path) -> tuple[float, float]:
    with running(way, folder):
        bursts = [loop.run(way.calls) for _ in range(2)]
    return min(one.cpu_ns for one in bursts), min(one.wall_ns for one in bursts)


def as_text(costs: Sequence[Cost]) -> str:
    heading = ("way", "target CPU ns/call", "wall ns/call", "tool CPU ns/call, start included")
    rows = [
        (one.name, spread(one.target_ns, 0), spread(one.wall_ns, 0), spread(one.tool_ns, 0)) for one in costs
    ]
    by_name = {one.name: statistics.median(one.target_ns) for one in costs}
    lines = [render(heading, rows)]
    for mine, other in (("snoop --statistics", "bpftrace, hist()"), ("snoop, lines", "bpftrace, printf()")):
        if mine in by_name and other in by_name:
            lines.append(f"  {mine} costs the target {by_name[mine] / by_name[other]:.2f} of {other}")
    return "\n".join(lines)
