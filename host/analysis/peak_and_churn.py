"""Stacks by what they held at the peak, and by what they allocated and gave back."""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.block_sums import StackSums
from memleak_android.host.analysis.sites import SiteNamer, end_name
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.keys import KeyStacks
from memleak_android.host.profile.profile import PastSite, Peak

SITES_MAX = 100


def peak_of(capture: Capture, keys: KeyStacks, namer: SiteNamer, is_sampled: bool) -> Peak | None:
    """None where the last snapshot holds most, or where the counters include other processes than the chosen ones.

    A key that covers several stacks counts for the first of them.
    """
    marks, recorded = capture.high_water, capture.session.findings
    at = marks.at
    if at is None or capture.only_pids is not None:
        return None
    index, is_known = keys.find(at.rows)
    held = np.bincount(
        keys.stack[index[is_known]], at.rows["space"][is_known].astype(np.float64), keys.n_stacks
    )
    space = np.rint(held).astype(np.int64)
    holding = np.flatnonzero(held > 0)
    largest = holding[np.argsort(-space[holding], kind="stable")[:SITES_MAX]]
    begin_ns = int(capture.hello["monotonic_ns"]) if capture.hello is not None else at.timestamp_ns
    sites = _sites(largest, space[largest], None, namer)
    # A finished recording keeps bound and level in its SESSION: it has the last STATUS only.
    bound = recorded.peak_bound if marks.bound is None else marks.bound
    is_counted = bound is None and not is_sampled and not capture.session.tracing.sample_bytes
    level = max(marks.level, recorded.highest_level, marks.space) if is_counted else None
    return Peak(max(0, at.timestamp_ns - begin_ns), marks.space, level, sites, bound)


def churn_sites(sums: StackSums, namer: SiteNamer) -> tuple[PastSite, ...]:
    """By number of blocks given back; () where allocations are not counted. sums: of all live blocks."""
    objects = sums.alloc_objects - sums.inuse_objects
    space = sums.alloc_space - sums.inuse_space
    temporary = np.flatnonzero((sums.alloc_objects >= 0) & (objects > 0))
    most = temporary[np.argsort(-objects[temporary], kind="stable")[:SITES_MAX]]
    return _sites(most, np.maximum(space[most], 0), objects[most], namer)


def _sites(
    stacks: NDArray[np.int64], space: NDArray[np.int64], objects: NDArray[np.int64] | None, namer: SiteNamer
) -> tuple[PastSite, ...]:
    namer.resolve(stacks)
    traces = namer.table.traces[namer.table.first_trace[stacks]]
    calls = zip(traces["function"].tolist(), traces["end"].tolist(), namer.named(stacks), strict=True)
    counts: list[int] | list[None] = [None] * len(stacks) if objects is None else objects.tolist()
    found = []
    for held, count, (function, end, (frames, id_)) in zip(space.tolist(), counts, calls, strict=True):
        kind = namer.kind(function, frames, count or 1)
        if kind != "mmap":
            found.append(PastSite(id_, held, count, kind, end_name(end), frames))
    return tuple(found)
