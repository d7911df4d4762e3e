"""Stack slices with only the words that lead from frame to frame (struct ml_sparse_stack of device/wire.h).

Instead of the slice: number of words, the words, and for each its index in the slice, in words, as u16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import SPARSE_STACK, STACK_BYTES_MAX, Rows

Ints = NDArray[np.int64]
WORD = SPARSE_STACK.itemsize  # also the size of the number of words


class SparseWords(NamedTuple):
    """Words of several records. owner: index of the record; slot: of the word in its slice."""

    owner: Ints
    slot: Ints
    value: NDArray[np.uint64]


def fault(data: NDArray[np.uint8], rows: Rows, starts: Ints, ends: Ints, records: Ints) -> int | None:
    """The first of `records` whose words are not within its start and end (bytes) or not within its slice."""
    whole = rows["stack_bytes"][records].astype(np.int64)
    room = ends[records] - starts[records]
    bad = (room < WORD) | (whole > STACK_BYTES_MAX) | (whole % WORD != 0)
    count = np.zeros(len(records), np.int64)
    count[~bad] = np.minimum(_u64(data)[starts[records[~bad]] // WORD], STACK_BYTES_MAX).astype(np.int64)
    bad |= WORD + count * (WORD + 2) > room
    if not bad.any():
        words = read(data, starts, records)
        bad[words.owner[words.slot >= whole[words.owner] // WORD]] = True
    return int(records[np.argmax(bad)]) if bad.any() else None


def read(data: NDArray[np.uint8], starts: Ints, records: Ints) -> SparseWords:
    """The words of `records`, which fault() has checked. starts: byte offset of the words of each record."""
    words = _u64(data)
    first = starts[records] // WORD
    count = words[first].astype(np.int64)
    owner = np.repeat(np.arange(len(records)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    first, count = first[owner], count[owner]
    indexes = data[: len(words) * WORD].view("<u2")[(first + 1 + count) * 4 + within]
    return SparseWords(owner, indexes.astype(np.int64), words[first + 1 + within])


def _u64(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return data[: len(data) // WORD * WORD].view("<u8")
