"""The result of a memory scan, for host/analysis/reachability.py, and the allocator's own memory in it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.maps import Mapping

_GLIBC_HEAP_BYTES = 64 << 20  # glibc malloc/arena.c: HEAP_MAX_SIZE, the alignment of threads' arenas
_ALLOCATOR_NAMES = ("[heap]", "[anon:libc_malloc]", "[anon:scudo:")  # bionic's names: libc/bionic, scudo

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


def memory_scan(
    mappings: Sequence[Mapping],
    registers: Addresses,
    sources: Iterable[Addresses],
    values: Sequence[Addresses],
    *facts: int,
    block_addresses: Addresses,
) -> MemoryScan:
    """registers: of all threads, untagged. sources, values: in pieces. facts: the rest of MemoryScan.

    block_addresses: some of the process's blocks, to recognise the allocator's memory.
    """
    allocator = (mapping for mapping in mappings if _is_allocators(mapping, block_addresses))
    return MemoryScan(
        np.concatenate([np.zeros(len(registers), np.uint64), *sources]),
        np.concatenate([registers, *values]),
        _bounds(allocator),
        _bounds(_with_bss(mappings, "/libc.so.6", "/libc-2.")),
        *facts,
    )


def _is_allocators(mapping: Mapping, block_addresses: Addresses) -> bool:
    """Whether the memory is cut into blocks and contains nothing else. Unknown memory is scanned as any other."""
    if mapping.path.startswith(_ALLOCATOR_NAMES):
        return True
    if mapping.path or not mapping.permissions.startswith("rw") or mapping.start % _GLIBC_HEAP_BYTES:
        return False
    sorted_addresses = np.sort(block_addresses)
    return int(np.searchsorted(sorted_addresses, mapping.end)) > int(
        np.searchsorted(sorted_addresses, mapping.start)
    )


def _with_bss(mappings: Sequence[Mapping], *names: str) -> Iterator[Mapping]:
    """Writable mappings of the files with these names, and the anonymous memory after each, which is their .bss."""
    before: Mapping | None = None
    for mapping in mappings:
        is_bss = before is not None and not mapping.path and mapping.start == before.end
        is_named = any(name in mapping.path for name in names)
        is_wanted = mapping.permissions.startswith("rw") and (is_named or is_bss)
        if is_wanted:
            yield mapping
        before = mapping if is_wanted and is_named else None


def _bounds(mappings: Iterator[Mapping]) -> Addresses:
    return np.array([(mapping.start, mapping.end) for mapping in mappings], np.uint64).reshape(-1, 2)
