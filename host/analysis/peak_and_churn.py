"""Stacks by what they held at the peak, and by what they allocated and gave back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.sites import SiteNamer, Sums, end_name
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.key_history import key_identity
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.profile import PastSite, Peak

SITES_MAX = 100


def peak_of(capture: Capture, survivors: Survivors, namer: SiteNamer) -> Peak | None:
    """None where the last snapshot holds most, or where other processes were counted with the ones asked for."""
    at = capture.high_water.at
    if at is None or capture.only_pids is not None:
        return None
    stacks, space = _by_stack(at.rows, survivors)
    largest = np.argsort(-space, kind="stable")[:SITES_MAX]
    begin_ns = int(capture.hello["monotonic_ns"]) if capture.hello is not None else at.timestamp_ns
    sites = _sites(stacks[largest], space[largest], None, survivors, namer)
    is_sampled = bool(survivors.snapshot.live["sample_bytes"].any() or capture.session.tracing.sample_bytes)
    # A finished recording keeps bound and level in its SESSION: it has the last STATUS only.
    marks, recorded = capture.high_water, capture.session.findings
    bound, total = recorded.peak_bound if marks.bound is None else marks.bound, marks.space
    is_counted = not is_sampled and bound is None
    level = max(marks.level, recorded.highest_level, total) if is_counted else None
    return Peak(max(0, at.timestamp_ns - begin_ns), total, level, sites, bound)


def _by_stack(rows: np.ndarray, survivors: Survivors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stacks and bytes. Of a key that covers several stacks the first one is named."""
    table = survivors.stacks
    keys, first = np.unique(key_identity(table.traces), return_index=True)
    identities = key_identity(rows)
    place = np.minimum(np.searchsorted(keys, identities), max(len(keys) - 1, 0))
    known = keys[place] == identities if len(keys) else np.zeros(len(rows), bool)
    stack = table.stack_of_trace[first[place[known]]]
    space = np.bincount(stack, rows["space"][known].astype(np.float64), len(table.first_trace))
    held = np.flatnonzero(space > 0)
    return held, np.asarray(np.rint(space[held]), np.int64)


def churn_sites(survivors: Survivors, sums: Sums, namer: SiteNamer) -> tuple[PastSite, ...]:
    """By blocks given back; nothing where allocations are not counted. sums: of all live blocks."""
    objects = sums.alloc_objects - sums.inuse_objects
    space = sums.alloc_space - sums.inuse_space
    temporary = np.flatnonzero((sums.alloc_objects >= 0) & (objects > 0))
    most = temporary[np.argsort(-objects[temporary], kind="stable")[:SITES_MAX]]
    return _sites(most, np.maximum(space[most], 0), objects[most], survivors, namer)


def _sites(
    stacks: NDArray[np.int64],
    space: NDArray[np.int64],
    objects: NDArray[np.int64] | None,
    survivors: Survivors,
    namer: SiteNamer,
) -> tuple[PastSite, ...]:
    table = survivors.stacks
    namer.look_up(stacks)
    traces = table.traces[table.first_trace[stacks]]
    calls = zip(traces["function"].tolist(), traces["end"].tolist(), namer.named(stacks), strict=True)
    counts: list[int] | list[None] = [None] * len(stacks) if objects is None else objects.tolist()
    made = []
    for held, count, (function, end, (frames, id_)) in zip(space.tolist(), counts, calls, strict=True):
        kind = namer.kind(function, frames, count or 1)
        if kind != "mmap":
            made.append(PastSite(id_, held, count, kind, end_name(end), frames))
    return tuple(made)
