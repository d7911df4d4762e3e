"""StoppedMemory → MemoryScan: finds the allocator's own memory in what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.unwind.maps import Mapping

_GLIBC_HEAP_BYTES = 64 << 20  # glibc malloc/arena.c: HEAP_MAX_SIZE, the alignment of threads' arenas
_ALLOCATOR_NAMES = ("[heap]", "[anon:libc_malloc]", "[anon:scudo:")  # bionic's names: libc/bionic, scudo


@dataclass(frozen=True, slots=True)
class StoppedMemory:
    """registers: of all threads, untagged. sources(), values: in pieces. The rest is MemoryScan's."""

    mappings: Sequence[Mapping]
    registers: Addresses
    sources: Callable[[], Iterator[Addresses]]
    values: Sequence[Addresses]
    timestamp_ns: int
    stopped_ns: int
    scanned_bytes: int
    n_threads: int
    word_bytes: int = 8

    def scan(self, block_addresses: Addresses) -> MemoryScan:
        """block_addresses: some of its blocks, to recognise the allocator's memory."""
        allocator = (mapping for mapping in self.mappings if _is_allocators(mapping, block_addresses))
        return MemoryScan(
            np.concatenate([np.zeros(len(self.registers), np.uint64), *self.sources()]),
            np.concatenate([self.registers, *self.values]),
            _bounds(allocator),
            _bounds(_with_bss(self.mappings, "/libc.so.6", "/libc-2.")),
            self.timestamp_ns,
            self.stopped_ns,
            self.scanned_bytes,
            self.n_threads,
            self.word_bytes,
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
