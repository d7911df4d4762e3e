"""Structures and words packed at any offset of a payload, and ranges of rows, without a loop."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import EvidenceFlag, Rows

Ints = NDArray[np.int64]
WORD = 8


def words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The whole 64-bit words of a payload."""
    return data[: len(data) // WORD * WORD].view("<u8")


def structures(data: NDArray[np.uint8], offsets: Ints, dtype: np.dtype[np.void]) -> Rows:
    """The structure at each offset."""
    picked = data[offsets[:, None] + np.arange(dtype.itemsize)]
    return np.ascontiguousarray(picked).view(dtype).reshape(len(offsets))


def has(rows: Rows, flag: EvidenceFlag) -> NDArray[np.bool_]:
    """By record of evidence: whether it has the flag, or one of several."""
    return np.asarray((rows["flags"] & np.uint16(flag)) != 0)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, …: counts[i] numbers for each start, concatenated."""
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(starts, counts) + within, np.int64)


def distinct(*columns: NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """The first of each set of equal rows, sorted by the first column, then the next; and by row the number of its set.

    np.unique() of rows takes twenty times as long: it compares structures field by field, by Python objects.
    """
    order = np.lexsort(columns[::-1])
    is_first = np.zeros(len(order), bool)
    is_first[:1] = True
    for column in columns:
        values = column[order]
        is_first[1:] |= values[1:] != values[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_first) - 1
    return order[is_first], number


def counted_fault(
    data: NDArray[np.uint8], starts: Ints, ends: Ints, head: np.dtype[np.void], item_bytes: int, most: int
) -> int | None:
    """The first record whose part is not within its bytes: a head with n_frames (at most `most`), then as many items.

    starts: of the parts, -1 = none. ends: of the records.
    """
    records = np.flatnonzero(starts >= 0)
    room = ends[records] - starts[records]
    bad = room < head.itemsize
    counts = np.zeros(len(records), np.int64)
    counts[~bad] = structures(data, starts[records[~bad]], head)["n_frames"]
    bad |= (counts > most) | (head.itemsize + counts * item_bytes > room)
    return int(records[np.argmax(bad)]) if bad.any() else None


class StackWords(NamedTuple):
    """Words of several records. owner: index of the record. slot: of the word, from where the record says."""

    owner: Ints
    slot: Ints
    value: NDArray[np.uint64]


def stack_words(
    data: NDArray[np.uint8], first: Ints, counts: Ints, slot: type[np.unsignedinteger]
) -> StackWords:
    """counts[i] words from word first[i] of the payload on, and behind them the slot of each."""
    values, per_word = words(data), WORD // np.dtype(slot).itemsize
    slots = data[: len(values) * WORD].view(slot)[ranges((first + counts) * per_word, counts)]
    owner = np.repeat(np.arange(len(counts)), counts)
    return StackWords(owner, slots.astype(np.int64), values[ranges(first, counts)])
