"""What a look into a process's memory found: plain data between host/machine/scan/local.py and host/analysis/reachability.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MemoryScan:
    """What stood in a process's writable memory while all its threads were stopped.

    source, value: (n,) the address of each word that may refer to a block, and the word (untagged); source 0 is a
    register. allocator: (m, 2) bounds of memory that the allocator cuts into blocks; what lies there outside of
    them refers to nothing. libc: (k, 2) bounds of the C library's data, where the allocator's own lists begin.
    """

    source: Addresses
    value: Addresses
    allocator: Addresses
    libc: Addresses
    timestamp_ns: int  # CLOCK_MONOTONIC, when all threads stood still
    stopped_ns: int  # from the first thread's stop to the last one's leave
    scanned_bytes: int
    n_threads: int
    word_bytes: int = 8
