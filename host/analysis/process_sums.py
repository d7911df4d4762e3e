"""What each process holds: of sessions that measured more than one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.profile import ProcessShare, ProcessSum
from memleak_android.host.wire.blocks import ProcessEvent
from memleak_android.unwind.trace import TraceEnd

NO_STACK = -1


@dataclass(frozen=True, slots=True)
class Holdings:
    """By process and stack (NO_STACK: blocks without one), in this order: bytes and blocks, estimated where sampled."""

    pid: NDArray[np.int64]
    stack: NDArray[np.int64]
    space: NDArray[np.float64]
    objects: NDArray[np.float64]


def holdings(survivors: Survivors, stacks: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Holdings | None:
    """Of the `chosen` live blocks (by block, as `stacks`: attribution.UNATTRIBUTED = none). None where all are of one process."""
    live = survivors.snapshot.live
    pids = np.unique(live["pid"])
    if len(pids) < 2:
        return None
    n_stacks = len(survivors.stacks.first_trace) + 1
    sums: dict[int, NDArray[np.float64]] = {}
    for part in attribution.chunks(len(live)):
        rows = live[part][chosen[part]]
        weight = attribution.sampling_weights(rows)
        process = np.searchsorted(pids, rows["pid"]).astype(np.int64)
        pair, number = np.unique(process * n_stacks + stacks[part][chosen[part]] + 1, return_inverse=True)
        space = np.bincount(number, rows["size"].astype(np.float64) * weight, len(pair))
        found = np.stack([space, np.bincount(number, weight, len(pair))], axis=1)
        for one, sum_ in zip(pair.tolist(), found, strict=True):
            sums[one] = sums.get(one, 0) + sum_
    pairs = np.array(sorted(sums), np.int64)
    columns = np.array([sums[one] for one in pairs.tolist()], np.float64).reshape(-1, 2)
    return Holdings(pids[pairs // n_stacks], pairs % n_stacks - 1, columns[:, 0], columns[:, 1])


def process_sums(
    survivors: Survivors,
    held: Holdings,
    names: dict[int, str],
    ids_of: Callable[[NDArray[np.int64]], list[str]],
) -> tuple[ProcessSum, ...]:
    """Largest first. ids_of: of stacks the sites' ids."""
    table = survivors.stacks
    is_whole = table.traces["end"][table.first_trace] == TraceEnd.ROOT
    complete = np.zeros(len(held.stack), bool)
    has_stack = held.stack != NO_STACK
    complete[has_stack] = is_whole[held.stack[has_stack]]
    bounds = np.flatnonzero(np.diff(held.pid)) + 1
    groups = np.split(np.arange(len(held.pid)), bounds) if len(held.pid) else []
    tops = np.array([_top(held, rows[has_stack[rows]]) for rows in groups], np.int64)
    top_ids = iter(ids_of(tops[tops != NO_STACK]))
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
                next(top_ids) if top != NO_STACK else "",
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.space, one.pid)))


def _top(held: Holdings, rows: NDArray[np.int64]) -> int:
    return int(held.stack[rows[np.argmax(held.space[rows])]]) if len(rows) else NO_STACK


def shares_by_stack(held: Holdings) -> dict[int, tuple[ProcessShare, ...]]:
    """Whose blocks a site's are, largest first."""
    order = np.lexsort((-held.space, held.stack))
    shares: dict[int, list[ProcessShare]] = {}
    columns = (held.stack[order], held.pid[order], np.rint(held.space[order]), np.rint(held.objects[order]))
    for stack, pid, space, objects in zip(*(column.tolist() for column in columns), strict=True):
        if stack != NO_STACK:
            shares.setdefault(stack, []).append(ProcessShare(pid, int(space), int(objects)))
    return {stack: tuple(rows) for stack, rows in shares.items()}


def process_names(capture: Capture) -> dict[int, str]:
    """The last name that was told of each process; a finished recording has them in its session."""
    names = dict(capture.session.findings.process_names)
    for rows in capture.processes:
        for row in rows[rows["event"] != ProcessEvent.EXIT]:
            if name := bytes(row["comm"]).split(b"\0")[0].decode("utf-8", "replace"):
                names[int(row["pid"])] = name
    return names
