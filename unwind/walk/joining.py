"""Continues truncated stacks with frames of other samples of the same thread.

A stack slice that was too short ends a trace in the middle. If another sample of that thread has the same outermost
frames at the same stack pointers, its callers are most likely the callers of the truncated trace too. This is an
inference: between two samples the thread may have returned and been called from elsewhere at the same depth. So
traces are joined only on request and only if all samples agree. Joined frames are marked Method.JOINED.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd

Ints = NDArray[np.int64]
_NOTHING, _BOTTOM, _DISPUTED = -1, -2, -3  # no caller: not seen, the thread's start, several callers
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio
_FRAMES_MAX = 1024  # added to one trace


def join_truncated(traces: TraceBatch, threads: NDArray[np.integer], *, overlap: int = 2) -> TraceBatch:
    """Returns the traces; those that end STACK_TRUNCATED are extended with the callers that other samples show.

    threads: one number per trace, equal for samples of one thread of one process and program (exec makes another).
    overlap: how many frames, the outermost ones, two chains must share in address and stack pointer; at least 1.
    Joining stops at the first frame whose caller differs between samples. A trace that reaches the thread's start
    ends ROOT. Cost: a few sorts of all frames.
    """
    if overlap < 1:
        raise ValueError("overlap must be at least 1")
    if not len(traces.address):
        return traces
    owner = np.repeat(np.arange(len(traces)), np.diff(traces.offsets))
    context = _contexts(traces, np.asarray(threads)[owner], owner, overlap)
    caller, shown_by = _callers(traces, context, owner)
    return _continued(traces, context, caller, shown_by)


def _contexts(traces: TraceBatch, thread: Ints, owner: Ints, overlap: int) -> Ints:
    """A number per frame, equal if the `overlap` frames up to it are equal; _NOTHING near a trace's inner end."""
    columns = (traces.address, traces.sp, thread.astype(np.uint64), traces.is_return.astype(np.uint64))
    frame_hash = np.zeros(len(owner), np.uint64)
    for column in columns:
        frame_hash = _mixed(frame_hash, column)
    window_hash = frame_hash
    for _ in range(overlap - 1):
        window_hash = _mixed(np.concatenate([frame_hash[:1], window_hash[:-1]]), frame_hash)
    _, shown_by, number = np.unique(window_hash, return_index=True, return_inverse=True)
    level = np.arange(len(owner)) - traces.offsets[owner]
    inside = level >= overlap - 1
    alike = shown_by[number]
    for back in range(overlap):  # different windows may share a hash
        here, there = (np.maximum(frames - back, 0) for frames in (np.arange(len(owner)), alike))
        inside &= np.logical_and.reduce([column[here] == column[there] for column in columns])
    return np.where(inside & (level[alike] >= overlap - 1), number, _NOTHING)


def _mixed(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (first ^ second) * _MULTIPLIER + first
    return mixed ^ (mixed >> np.uint64(29))


def _callers(traces: TraceBatch, context: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """(the caller's context that all samples agree on, a frame that has the context), both by context."""
    count = int(context.max()) + 1
    shown_by = np.zeros(max(count, 1), np.int64)
    seen = np.flatnonzero(context != _NOTHING)
    shown_by[context[seen]] = seen
    caller = np.full(max(count, 1), _NOTHING, np.int64)
    last = np.zeros(len(context), np.bool_)
    last[traces.offsets[1:][np.diff(traces.offsets) > 0] - 1] = True
    above = np.append(context[1:], _NOTHING)
    above[last] = np.where(traces.end[owner[last]] == TraceEnd.ROOT, _BOTTOM, _NOTHING)
    known = np.flatnonzero((context != _NOTHING) & (above != _NOTHING))
    caller[context[known]] = above[known]  # an arbitrary one of several; disputes are detected next
    disputed = known[caller[context[known]] != above[known]]
    caller[context[disputed]] = _DISPUTED
    return caller, shown_by


class _Added(NamedTuple):
    """Frames to add, by level: the trace to extend and the frame of the batch to copy."""

    traces: Ints
    frames: Ints
    reached_bottom: Ints


def _follow(traces: TraceBatch, context: Ints, caller: Ints, shown_by: Ints) -> _Added:
    """Follows the callers of every truncated trace's outermost frame, all traces at once."""
    going = np.flatnonzero((traces.end == TraceEnd.STACK_TRUNCATED) & (np.diff(traces.offsets) > 0))
    at = context[traces.offsets[1:][going] - 1]
    going, at = going[at != _NOTHING], at[at != _NOTHING]
    begun = traces.sp[traces.offsets[1:][going] - 1]
    steps: list[tuple[Ints, Ints]] = [(going[:0], going[:0])]
    bottom: list[Ints] = [going[:0]]
    for _ in range(_FRAMES_MAX):
        at = caller[at]
        bottom.append(going[at == _BOTTOM])
        rises = at >= 0
        rises[rises] = traces.sp[shown_by[at[rises]]] > begun[rises]  # prevents cycles
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


def _continued(traces: TraceBatch, context: Ints, caller: Ints, shown_by: Ints) -> TraceBatch:
    added = _follow(traces, context, caller, shown_by)
    depth = np.diff(traces.offsets)
    offsets = np.concatenate([[0], np.cumsum(depth + np.bincount(added.traces, minlength=len(traces)))])
    order = np.argsort(added.traces, kind="stable")
    owner = added.traces[order]
    nth = np.arange(len(owner)) - np.searchsorted(owner, owner)
    source = np.empty(int(offsets[-1]), np.int64)
    kept = np.arange(len(traces.address)) + np.repeat(offsets[:-1] - traces.offsets[:-1], depth)
    joined = offsets[owner] + depth[owner] + nth
    source[kept], source[joined] = np.arange(len(kept)), added.frames[order]
    method = traces.method[source]
    method[joined] = Method.JOINED
    end = traces.end.copy()
    end[added.reached_bottom] = TraceEnd.ROOT
    return TraceBatch(
        offsets, traces.address[source], traces.sp[source], traces.is_return[source], method, end
    )
