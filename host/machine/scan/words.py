"""The result of a memory scan, for host/analysis/reachability.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MemoryScan:
    """Words in a process's writable memory while all its threads were stopped.

    source, value: (n,) the address of each word that may refer to a block, and the word (untagged); source 0 is a register.
    allocator: (m, 2) bounds of memory that the allocator cuts into blocks; words there outside of blocks are no references.
    libc: (k, 2) bounds of the C library's data, which holds the heads of the allocator's lists.
    """

    source: Addresses
    value: Addresses
    allocator: Addresses
    libc: Addresses
    timestamp_ns: int  # CLOCK_MONOTONIC, when all threads had stopped
    stopped_ns: int  # from the first thread's stop to the last one's resume
    scanned_bytes: int
    n_threads: int
    word_bytes: int = 8
