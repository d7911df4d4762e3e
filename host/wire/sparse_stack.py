"""Stack slices with only the words that lead from frame to frame (struct ml_sparse_stack of device/wire.h).

Instead of the slice: number of words, the words, and for each its index in the slice, in words, as u16.
"""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import SPARSE_BYTES_MAX, STACK_BYTES_MAX, Rows
from memleak_android.host.wire.packed import WORD, Ints, StackWords, stack_words, words


def fault(data: NDArray[np.uint8], rows: Rows, starts: Ints, ends: Ints, records: Ints) -> int | None:
    """The first of `records` whose words are not within its start and end (bytes) or not within its slice."""
    whole = rows["stack_bytes"][records].astype(np.int64)
    room = ends[records] - starts[records]
    bad = (room < WORD) | (whole > SPARSE_BYTES_MAX) | (whole % WORD != 0)
    count = np.zeros(len(records), np.int64)
    count[~bad] = np.minimum(words(data)[starts[records[~bad]] // WORD], STACK_BYTES_MAX).astype(np.int64)
    bad |= WORD + count * (WORD + 2) > room
    if not bad.any():
        sent = read(data, starts, records)
        bad[sent.owner[sent.slot >= whole[sent.owner] // WORD]] = True
    return int(records[np.argmax(bad)]) if bad.any() else None


def read(data: NDArray[np.uint8], starts: Ints, records: Ints) -> StackWords:
    """The words of `records`, which fault() has checked. starts: byte offset of the words of each record."""
    first = starts[records] // WORD + 1
    return stack_words(data, first, words(data)[first - 1].astype(np.int64), np.uint16)
