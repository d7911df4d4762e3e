"""Structures and words packed at any offset of a payload, and ranges of rows, without a loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import Rows

Ints = NDArray[np.int64]
WORD = 8


def words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The whole 64-bit words of a payload."""
    return data[: len(data) // WORD * WORD].view("<u8")


def structures(data: NDArray[np.uint8], offsets: Ints, dtype: np.dtype[np.void]) -> Rows:
    """The structure at each offset."""
    picked = data[offsets[:, None] + np.arange(dtype.itemsize)]
    return np.ascontiguousarray(picked).view(dtype).reshape(len(offsets))


def ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, …: counts[i] numbers for each start, concatenated."""
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(starts, counts) + within, np.int64)
