"""Stack slices with only the words that lead from frame to frame (struct ml_sparse_stack of device/wire.h).

Instead of the slice: number of words, the words, and for each its index in the slice, in words, as u16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import STACK_BYTES_MAX, Rows
from memleak_android.host.wire.packed import WORD, Ints, ranges, words


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
    count[~bad] = np.minimum(words(data)[starts[records[~bad]] // WORD], STACK_BYTES_MAX).astype(np.int64)
    bad |= WORD + count * (WORD + 2) > room
    if not bad.any():
        sent = read(data, starts, records)
        bad[sent.owner[sent.slot >= whole[sent.owner] // WORD]] = True
    return int(records[np.argmax(bad)]) if bad.any() else None


def read(data: NDArray[np.uint8], starts: Ints, records: Ints) -> SparseWords:
    """The words of `records`, which fault() has checked. starts: byte offset of the words of each record."""
    values = words(data)
    first = starts[records] // WORD + 1
    count = values[first - 1].astype(np.int64)
    slots = data[: len(values) * WORD].view("<u2")[ranges((first + count) * 4, count)]
    owner = np.repeat(np.arange(len(records)), count)
    return SparseWords(owner, slots.astype(np.int64), values[ranges(first, count)])
