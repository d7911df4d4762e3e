"""Truncated stacks continued by other samples of the same thread that show the same frames in the same places.

A slice that was too short ends a chain in the middle. Where another sample of that thread has the chain's outermost
frames too, at the same stack pointers, its callers are most likely this one's as well. It is a conclusion, not an
observation: between two samples the thread may have returned and been called from elsewhere at the same depth. So it
is made only on request, only where all samples agree, and each frame that comes by it says so (Method.JOINED).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd

Ints = NDArray[np.int64]
_NOTHING, _BOTTOM, _DISPUTED = -1, -2, -3  # in place of a caller: not seen, the thread's start, several
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio
_FRAMES_MAX = 1024  # that are added to one chain


def join_truncated(traces: TraceBatch, threads: NDArray[np.integer], *, overlap: int = 2) -> TraceBatch:
    """The same traces, those that end STACK_TRUNCATED longer where other samples tell how they go on.

    threads: one number per trace, equal for samples of one thread of one process and program (exec makes another).
    overlap: how many frames, the outermost ones, two chains must share in address and stack pointer; at least 1.
    What samples disagree about is not joined, nor is anything above it. A chain that reaches the thread's start
    ends ROOT then. Cost: a few sorts of all frames.
    """
    if overlap < 1:
        raise ValueError("overlap must be at least 1")
    if not len(traces.address):
        return traces
    owner = np.repeat(np.arange(len(traces)), np.diff(traces.offsets))
    place = _places(traces, np.asarray(threads)[owner], owner, overlap)
    caller, shown_by = _callers(traces, place, owner)
    return _continued(traces, place, caller, shown_by)


def _places(traces: TraceBatch, thread: Ints, owner: Ints, overlap: int) -> Ints:
    """A number for each frame, equal where `overlap` frames up to this one are; _NOTHING near a chain's inner end."""
    columns = (traces.address, traces.sp, thread.astype(np.uint64), traces.is_return.astype(np.uint64))
    one = np.zeros(len(owner), np.uint64)
    for column in columns:
        one = _mixed(one, column)
    place = one
    for _ in range(overlap - 1):
        place = _mixed(np.concatenate([one[:1], place[:-1]]), one)
    _, shown_by, number = np.unique(place, return_index=True, return_inverse=True)
    level = np.arange(len(owner)) - traces.offsets[owner]
    inside = level >= overlap - 1
    alike = shown_by[number]
    for back in range(overlap):  # two that are not equal may have been mixed to one number
        here, there = (np.maximum(frames - back, 0) for frames in (np.arange(len(owner)), alike))
        inside &= np.logical_and.reduce([column[here] == column[there] for column in columns])
    return np.where(inside & (level[alike] >= overlap - 1), number, _NOTHING)


def _mixed(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (first ^ second) * _MULTIPLIER + first
    return mixed ^ (mixed >> np.uint64(29))


def _callers(traces: TraceBatch, place: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """(for each place the one that all samples show as its caller, for each place a frame that is there)."""
    count = int(place.max()) + 1
    shown_by = np.zeros(max(count, 1), np.int64)
    seen = np.flatnonzero(place != _NOTHING)
    shown_by[place[seen]] = seen
    caller = np.full(max(count, 1), _NOTHING, np.int64)
    last = np.zeros(len(place), np.bool_)
    last[traces.offsets[1:][np.diff(traces.offsets) > 0] - 1] = True
    above = np.append(place[1:], _NOTHING)
    above[last] = np.where(traces.end[owner[last]] == TraceEnd.ROOT, _BOTTOM, _NOTHING)
    known = np.flatnonzero((place != _NOTHING) & (above != _NOTHING))
    caller[place[known]] = above[known]  # of several any; then those that are not alone are found out
    disputed = known[caller[place[known]] != above[known]]
    caller[place[disputed]] = _DISPUTED
    return caller, shown_by


class _Added(NamedTuple):
    """Frames to add: to which trace, and which frame of the batch shows it; in the order of their levels."""

    traces: Ints
    frames: Ints
    reached_bottom: Ints


def _follow(traces: TraceBatch, place: Ints, caller: Ints, shown_by: Ints) -> _Added:
    """From the outermost frame of each truncated trace from caller to caller, all at once."""
    going = np.flatnonzero((traces.end == TraceEnd.STACK_TRUNCATED) & (np.diff(traces.offsets) > 0))
    at = place[traces.offsets[1:][going] - 1]
    going, at = going[at != _NOTHING], at[at != _NOTHING]
    begun = traces.sp[traces.offsets[1:][going] - 1]
    steps: list[tuple[Ints, Ints]] = [(going[:0], going[:0])]
    bottom: list[Ints] = [going[:0]]
    for _ in range(_FRAMES_MAX):
        at = caller[at]
        bottom.append(going[at == _BOTTOM])
        rises = at >= 0
        rises[rises] = traces.sp[shown_by[at[rises]]] > begun[rises]  # no circle
        going, at = going[rises], at[rises]
        if not len(going):
            break
        begun = traces.sp[shown_by[at]]
        steps.append((going, shown_by[at]))
    return _Added(
        np.concatenate([owner for owner, _ in steps]),
        np.concatenate([frame for _, frame in steps]),
        np.concatenate(bottom),
    )


def _continued(traces: TraceBatch, place: Ints, caller: Ints, shown_by: Ints) -> TraceBatch:
    added = _follow(traces, place, caller, shown_by)
    depth = np.diff(traces.offsets)
    offsets = np.concatenate([[0], np.cumsum(depth + np.bincount(added.traces, minlength=len(traces)))])
    order = np.argsort(added.traces, kind="stable")
    owner = added.traces[order]
    nth = np.arange(len(owner)) - np.searchsorted(owner, owner)
    source = np.empty(int(offsets[-1]), np.int64)
    places = np.arange(len(traces.address)) + np.repeat(offsets[:-1] - traces.offsets[:-1], depth)
    joined = offsets[owner] + depth[owner] + nth
    source[places], source[joined] = np.arange(len(places)), added.frames[order]
    method = traces.method[source]
    method[joined] = Method.JOINED
    end = traces.end.copy()
    end[added.reached_bottom] = TraceEnd.ROOT
    return TraceBatch(
        offsets, traces.address[source], traces.sp[source], traces.is_return[source], method, end
    )
