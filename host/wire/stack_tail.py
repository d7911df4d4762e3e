"""Words of the stack above a slice that was too short (struct ml_stack_above of device/wire.h), and their frames.

Behind the stack and the chain: its reach, number of words, the words, and for each its index above the slice, in words, as u32.
Words that were not sent are unknown: a stack ends at the frame that needs one, as if the slice ended there.
"""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import ABOVE_BYTES_MAX, ABOVE_WORDS_MAX, STACK_ABOVE, EvidenceFlag, Rows
from memleak_android.host.wire.packed import WORD, Ints, StackWords, has, stack_words, structures
from memleak_android.unwind.trace import TraceBatch, TraceEnd

_HEAD = STACK_ABOVE.itemsize
UNKNOWN = 1  # instead of each word that was not sent: the lowest page has no code (vm.mmap_min_addr)


def fault(data: NDArray[np.uint8], rows: Rows, starts: Ints, ends: Ints) -> int | None:
    """The first record whose words above the slice are inconsistent. starts: of the words, -1 = none."""
    records = np.flatnonzero(starts >= 0)
    room = ends[records] - starts[records]
    sparse = has(rows[records], EvidenceFlag.STACK_SPARSE)
    bad = (room < _HEAD) | sparse | (rows["stack_bytes"][records] % WORD != 0)
    heads = np.zeros(len(records), STACK_ABOVE)
    heads[~bad] = structures(data, starts[records[~bad]], STACK_ABOVE)
    reach, count = heads["reach_bytes"].astype(np.int64), heads["n_words"].astype(np.int64)
    bad |= (reach > ABOVE_BYTES_MAX) | (reach % WORD != 0) | (count > ABOVE_WORDS_MAX)
    bad |= _HEAD + count * (WORD + 4) > room
    if not bad.any():
        sent = read(data, starts[records])
        bad[sent.owner[sent.slot >= reach[sent.owner] // WORD]] = True
    return int(records[np.argmax(bad)]) if bad.any() else None


def reach(data: NDArray[np.uint8], starts: Ints) -> Ints:
    """The reach of each record's words in bytes above its slice; 0 = it has none (start -1)."""
    found = np.zeros(len(starts), np.int64)
    found[starts >= 0] = structures(data, starts[starts >= 0], STACK_ABOVE)["reach_bytes"]
    return found


def sizes(data: NDArray[np.uint8], starts: Ints) -> Ints:
    """The bytes of each record's part; 0 = it has none."""
    found = np.zeros(len(starts), np.int64)
    count = structures(data, starts[starts >= 0], STACK_ABOVE)["n_words"].astype(np.int64)
    found[starts >= 0] = _HEAD + count * WORD + ((4 * count + 7) & ~7)
    return found


def read(data: NDArray[np.uint8], starts: Ints) -> StackWords:
    """The words that begin at `starts`; none is -1, and fault() has checked them."""
    counts = structures(data, starts, STACK_ABOVE)["n_words"].astype(np.int64)
    return stack_words(data, starts // WORD + 1, counts, np.uint32)


def settled(traces: TraceBatch, rows: Rows, boundary: NDArray[np.uint64]) -> TraceBatch:
    """Traces of extended slices without the frames made from unknown words.

    rows: (n,) evidence. boundary: (n,) where the words above the slice begin. To step to a frame its callee's words are
    needed, all below the frame's stack pointer.
    """
    is_above = has(rows, EvidenceFlag.STACK_ABOVE)
    if not is_above.any():
        return traces
    depth = np.diff(traces.offsets)
    owner = np.repeat(np.arange(len(traces)), depth)
    beyond = is_above[owner] & (traces.sp > boundary[owner])
    is_last = np.zeros(len(owner), np.bool_)
    is_last[traces.offsets[1:][depth > 0] - 1] = True
    unknown = beyond & is_last & (traces.address == UNKNOWN)
    end = traces.end.copy()
    end[owner[unknown]] = TraceEnd.STACK_TRUNCATED
    kept = ~unknown
    offsets = np.concatenate([[0], np.cumsum(depth - np.bincount(owner[unknown], minlength=len(traces)))])
    return TraceBatch(
        offsets, traces.address[kept], traces.sp[kept], traces.is_return[kept], traces.method[kept], end
    )
