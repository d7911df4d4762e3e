"""Bytes and blocks held per process, for sessions that measured more than one."""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.block_sums import Holdings
from memleak_android.host.analysis.sites import SiteNamer
from memleak_android.host.heap.attribution import UNATTRIBUTED
from memleak_android.host.heap.capture import Capture
from memleak_android.host.profile.profile import ProcessShare, ProcessSum
from memleak_android.host.wire.blocks import ProcessEvent
from memleak_android.unwind.trace import TraceEnd


def process_sums(held: Holdings | None, names: dict[int, str], namer: SiteNamer) -> tuple[ProcessSum, ...]:
    """Largest first. held: None = a single process."""
    if held is None:
        return ()
    is_whole = namer.table.traces["end"][namer.table.first_trace] == TraceEnd.ROOT
    has_stack = held.stack != UNATTRIBUTED
    complete = np.zeros(len(held.stack), bool)
    complete[has_stack] = is_whole[held.stack[has_stack]]
    bounds = np.flatnonzero(np.diff(held.pid)) + 1
    groups = np.split(np.arange(len(held.pid)), bounds) if len(held.pid) else []
    tops = np.array([_top(held, rows[has_stack[rows]]) for rows in groups], np.int64)
    top_ids = iter(namer.ids_of(tops[tops != UNATTRIBUTED]))
    found = []
    for rows, top in zip(groups, tops.tolist(), strict=True):
        pid = int(held.pid[rows[0]])
        found.append(
            ProcessSum(
                pid,
                names.get(pid, ""),
                round(float(held.space[rows].sum())),
                round(float(held.objects[rows].sum())),
                round(float(held.space[rows][complete[rows]].sum())),
                next(top_ids) if top != UNATTRIBUTED else "",
            )
        )
    return tuple(sorted(found, key=lambda sum_: (-sum_.space, sum_.pid)))


def _top(held: Holdings, rows: NDArray[np.int64]) -> int:
    return int(held.stack[rows[np.argmax(held.space[rows])]]) if len(rows) else UNATTRIBUTED


def shares_by_stack(held: Holdings | None) -> dict[int, tuple[ProcessShare, ...]]:
    """The processes that hold each stack's blocks, largest first."""
    if held is None:
        return {}
    order = np.lexsort((-held.space, held.stack))
    shares: dict[int, list[ProcessShare]] = {}
    columns = (held.stack[order], held.pid[order], np.rint(held.space[order]), np.rint(held.objects[order]))
    for stack, pid, space, objects in zip(*(column.tolist() for column in columns), strict=True):
        if stack != UNATTRIBUTED:
            shares.setdefault(stack, []).append(ProcessShare(pid, int(space), int(objects)))
    return {stack: tuple(rows) for stack, rows in shares.items()}


def process_ends(capture: Capture) -> dict[int, int]:
    """When each process ended (nanoseconds of the target's monotonic clock); a finished recording has it in its session."""
    ends = dict(capture.session.findings.process_ends)
    for rows in capture.processes:
        for pid, event, time_ns in rows[["pid", "event", "timestamp_ns"]].tolist():
            if event == ProcessEvent.EXIT:
                ends[pid] = time_ns
            else:
                ends.pop(pid, None)  # the number was given again
    return ends


def process_names(capture: Capture) -> dict[int, str]:
    """The last reported name of each process; a finished recording has them in its session.

    A fork that reports none, as the kernel's records of --follow do, has its parent's.
    """
    names = dict(capture.session.findings.process_names)
    for rows in capture.processes:
        for row in rows[rows["event"] != ProcessEvent.EXIT]:
            name = bytes(row["comm"]).split(b"\0")[0].decode("utf-8", "replace")
            if not name and row["event"] == ProcessEvent.FORK:
                name = names.get(int(row["parent"]), "")
            if name:
                names[int(row["pid"])] = name
    return names
