"""Stack slices of which only the words that lead from frame to frame were sent (struct ml_sparse_stack of device/wire.h).

In the place of the slice stand their number, the words, and for each its place in the slice in words, as u16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import SPARSE_STACK, STACK_BYTES_MAX, Rows

Ints = NDArray[np.int64]
WORD = SPARSE_STACK.itemsize  # that of the number of words, too


class SparseWords(NamedTuple):
    """Of several records, one after the other: whose (an index into them), where in the slice in words, and what."""

    owner: Ints
    place: Ints
    value: NDArray[np.uint64]


def fault(data: NDArray[np.uint8], rows: Rows, starts: Ints, ends: Ints, records: Ints) -> int | None:
    """The first of `records` whose words do not lie between its start and end (bytes), or not in its slice."""
    whole = rows["stack_bytes"][records].astype(np.int64)
    room = ends[records] - starts[records]
    bad = (room < WORD) | (whole > STACK_BYTES_MAX) | (whole % WORD != 0)
    count = np.zeros(len(records), np.int64)
    count[~bad] = np.minimum(_u64(data)[starts[records[~bad]] // WORD], STACK_BYTES_MAX).astype(np.int64)
    bad |= WORD + count * (WORD + 2) > room
    if not bad.any():
        words = read(data, starts, records)
        bad[words.owner[words.place >= whole[words.owner] // WORD]] = True
    return int(records[np.argmax(bad)]) if bad.any() else None


def read(data: NDArray[np.uint8], starts: Ints, records: Ints) -> SparseWords:
    """The words of `records`, which fault() has passed; starts: where what stands for each slice begins, in bytes."""
    words = _u64(data)
    first = starts[records] // WORD
    count = words[first].astype(np.int64)
    owner = np.repeat(np.arange(len(records)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    first, count = first[owner], count[owner]
    places = data[: len(words) * WORD].view("<u2")[(first + 1 + count) * 4 + within]
    return SparseWords(owner, places.astype(np.int64), words[first + 1 + within])


def _u64(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return data[: len(data) // WORD * WORD].view("<u8")
