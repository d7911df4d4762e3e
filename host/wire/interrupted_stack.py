"""The second stack of evidence whose signal handler ran on an alternate one (struct ml_interrupted_stack).

Behind the stack and the chain: its address, its length, its bytes.
"""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import INTERRUPTED_STACK, STACK_BYTES_MAX, EvidenceFlag, Rows
from memleak_android.host.wire.packed import WORD, Ints, has, structures

_HEAD = INTERRUPTED_STACK.itemsize
_ALONE = EvidenceFlag.STACK_SPARSE | EvidenceFlag.STACK_ABOVE  # flags of records that cannot have one


def fault(data: NDArray[np.uint8], rows: Rows, starts: Ints, ends: Ints) -> int | None:
    """The first record whose second stack is inconsistent. starts: of that part, -1 = none. ends: of the records."""
    records = np.flatnonzero(starts >= 0)
    room = ends[records] - starts[records]
    bad = (room < _HEAD) | has(rows[records], _ALONE)
    size = np.zeros(len(records), np.int64)
    size[~bad] = structures(data, starts[records[~bad]], INTERRUPTED_STACK)["stack_bytes"]
    bad |= (size > STACK_BYTES_MAX) | (size % WORD != 0) | (_HEAD + size > room)
    return int(records[np.argmax(bad)]) if bad.any() else None


def sizes(data: NDArray[np.uint8], starts: Ints) -> Ints:
    """The bytes of each record's part; 0 = it has none."""
    found = np.zeros(len(starts), np.int64)
    stack_bytes = structures(data, starts[starts >= 0], INTERRUPTED_STACK)["stack_bytes"]
    found[starts >= 0] = _HEAD + stack_bytes.astype(np.int64)
    return found


def read(data: NDArray[np.uint8], start: int) -> tuple[int, NDArray[np.uint8]]:
    """The address and the bytes of the stack that begins at `start`, which fault() has checked."""
    (head,) = structures(data, np.array([start], np.int64), INTERRUPTED_STACK)
    begin = start + _HEAD
    return int(head["stack_address"]), data[begin : begin + int(head["stack_bytes"])]
