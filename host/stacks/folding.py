"""Recursions deeper than a report can show: both ends of a stack are kept, and one entry stands for what is between them.

Recursions of different depth become the same stack, because the entry does not count.
"""

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import Method, TraceBatch

UNWOUND_MAX = 1 << 16  # before it is
_PERIOD_MAX = 16  # frames of one round
_ROUNDS_KEPT = 8  # at each end


def fold(traces: TraceBatch, limit: int) -> TraceBatch:
    """Traces of at most about `limit` frames. What is left out has one frame of Method.FOLDED, without an address."""
    depth = np.diff(traces.offsets)
    deep = np.flatnonzero(depth > limit)
    if not len(deep):
        return traces
    is_kept = np.ones(len(traces.address), np.bool_)
    for begin, end in zip(traces.offsets[deep].tolist(), traces.offsets[deep + 1].tolist(), strict=True):
        is_kept[begin:end] = _kept(traces.address[begin:end], limit)
    is_folded = ~is_kept
    is_folded[1:] &= is_kept[:-1]
    stays = is_kept | is_folded
    counts = np.concatenate([[0], np.cumsum(stays)])
    return TraceBatch(
        counts[traces.offsets],
        np.where(is_folded, np.uint64(0), traces.address)[stays],
        traces.sp[stays],
        (traces.is_return & is_kept)[stays],
        np.where(is_folded, np.uint8(Method.FOLDED), traces.method)[stays],
        traces.end,
    )


def _kept(address: NDArray[np.uint64], limit: int) -> NDArray[np.bool_]:
    """Which frames of one stack stay."""
    kept = np.arange(len(address))
    for period in range(1, _PERIOD_MAX + 1):
        kept = kept[_of_few_rounds(address[kept], period)]
    if len(kept) > limit:
        kept = np.concatenate([kept[: limit // 2], kept[len(kept) - limit // 2 :]])
    is_kept = np.zeros(len(address), np.bool_)
    is_kept[kept] = True
    return is_kept


def _of_few_rounds(address: NDArray[np.uint64], period: int) -> NDArray[np.bool_]:
    """Leaves out the middle of each run in which every frame is that of `period` frames before."""
    is_kept = np.ones(len(address), np.bool_)
    repeats = np.concatenate([[False], address[period:] == address[:-period], [False]])
    edges = np.flatnonzero(repeats[1:] != repeats[:-1])
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        more = (end + period - begin) // period - 2 * _ROUNDS_KEPT
        first = begin + _ROUNDS_KEPT * period
        if more > 0:
            is_kept[first : first + more * period] = False
    return is_kept
