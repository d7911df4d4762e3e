"""Scans the writable memory of a stopped local process for words that may refer to a block.

process_vm_readv(2) reads pieces that fit the processor's cache. Kept are 8 bytes for each candidate and one bit for each
word. Pages that never held data are skipped (/proc/PID/pagemap).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.scan.shim_memory import outside, shim_memory
from memleak_android.host.machine.scan.stopped_memory import StoppedMemory
from memleak_android.host.machine.scan.stopped_threads import StoppedThread, stopped_threads
from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.host.wire.blocks import Rows
from memleak_android.unwind.maps import Mapping

_PIECE_BYTES = 512 << 10  # fastest from here to 1 MiB: it fits the cache, and calls are few
_PAGEMAP_ENTRIES = 1 << 16  # read at once
_IN_MEMORY_OR_SWAP = np.uint64(3 << 62)  # Documentation/admin-guide/mm/pagemap.rst, bits 63 and 62
_RED_ZONE_BYTES = 128  # psABI x86-64 §3.2.2: in use, though below the stack pointer
_TAGGED = {
    "aarch64": np.uint64(2**56 - 1)
}  # top byte ignore: Documentation/arch/arm64/tagged-address-abi.rst
_OWN = ("/memfd:memleak", "libmemleak.so")  # the shim's segment, and its file

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
]


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


@dataclass(slots=True)
class _Candidates:
    """Words with values from `low` to below `high`, and their positions: a bit for each word of a piece.

    Addresses are computed from the bits after the process runs again.
    """

    low: np.uint64
    high: np.uint64
    values: list[Addresses] = field(default_factory=list)
    pieces: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    scanned_bytes: int = 0
    _distance: Addresses = field(default_factory=lambda: np.empty(_PIECE_BYTES // 8, np.uint64))
    _mask: NDArray[np.bool_] = field(default_factory=lambda: np.empty(_PIECE_BYTES // 8, bool))

    def add(self, address: int, words: Addresses) -> None:
        distance, mask = self._distance[: len(words)], self._mask[: len(words)]
        np.subtract(words, self.low, out=distance)
        np.less(distance, self.high - self.low, out=mask)
        self.values.append(words[mask])
        self.pieces.append((address, np.packbits(mask)))
        self.scanned_bytes += 8 * len(words)

    def sources(self) -> Iterator[Addresses]:
        for address, bits in self.pieces:
            yield np.flatnonzero(np.unpackbits(bits)).astype(np.uint64) * np.uint64(8) + np.uint64(address)


def scan_memory(pid: int, block_addresses: Addresses, held: Rows | np.void | None = None) -> MemoryScan:
    """Stops the process, reads its memory and resumes it.

    block_addresses: some of its blocks, to recognise the allocator's memory.
    held: EXIT_STOP of a process that an agent holds, with its last thread; the first may be gone.
    Raises TargetError if it may not be stopped or has ended.
    """
    if held is not None:
        words = tuple(held["registers"][: held["n_registers"]].tolist())
        thread = StoppedThread(int(held["tid"]), words, int(held["stack_pointer"]))
        return _read_all(thread.tid, (thread,), int(held["timestamp_ns"])).scan(block_addresses)
    with ThreadPoolExecutor(1, "memory-scan") as worker:
        return worker.submit(_stop_and_read, pid).result().scan(block_addresses)


def _stop_and_read(pid: int) -> StoppedMemory:
    """Runs in a thread of its own: the kernel resumes remaining stopped threads as it ends (exit_ptrace())."""
    stopping_ns = time.monotonic_ns()
    with stopped_threads(pid) as threads:
        look = _read_all(pid, threads, stopping_ns)
    return replace(look, stopped_ns=time.monotonic_ns() - stopping_ns)


def _read_all(pid: int, threads: Sequence[StoppedThread], since_ns: int) -> StoppedMemory:
    """Addresses are computed on demand, after the process runs again."""
    timestamp_ns = time.monotonic_ns()
    mappings = parse_maps(Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape"))
    mask = _TAGGED.get(os.uname().machine)
    found = _read(pid, mappings, threads, mask)
    registers = np.array([word for thread in threads for word in thread.registers], np.uint64)
    return StoppedMemory(
        mappings,
        registers if mask is None else registers & mask,
        found.sources,
        found.values,
        timestamp_ns,
        time.monotonic_ns() - since_ns,
        found.scanned_bytes,
        len(threads),
    )


def _read(
    pid: int, mappings: Sequence[Mapping], threads: Sequence[StoppedThread], mask: np.uint64 | None
) -> _Candidates:
    found = _Candidates(*_block_range(mappings))
    buffer = np.empty(_PIECE_BYTES // 8, np.uint64)
    for start, end in readable_ranges(pid, mappings, threads):
        for piece in range(start, end, _PIECE_BYTES):
            words = read_words(pid, piece, min(end - piece, _PIECE_BYTES), buffer)
            if mask is not None:
                words &= mask
            found.add(piece, words)
    return found


def readable_ranges(
    pid: int, mappings: Sequence[Mapping], threads: Sequence[StoppedThread]
) -> Iterator[tuple[int, int]]:
    """Bounds of the scanned memory: used pages of writable mappings; of a thread's stack the used part."""
    shim = shim_memory(pid, mappings)
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for mapping in mappings:
            if not mapping.permissions.startswith("rw") or any(name in mapping.path for name in _OWN):
                continue
            pointers = [t.stack_pointer for t in threads if mapping.start <= t.stack_pointer < mapping.end]
            bottom = max(mapping.start, min(pointers) - _RED_ZONE_BYTES & ~7) if pointers else mapping.start
            for start, end in outside(shim, bottom, mapping.end):
                yield from _used(pagemap.fileno(), start, end)


def _used(pagemap: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    page = os.sysconf("SC_PAGE_SIZE")
    for first in range(start // page, -(-end // page), _PAGEMAP_ENTRIES):
        count = min(_PAGEMAP_ENTRIES, -(-end // page) - first)
        entries = np.frombuffer(os.pread(pagemap, 8 * count, 8 * first), np.uint64)
        used = np.zeros(len(entries) + 2, np.int8)
        used[1:-1] = (entries & _IN_MEMORY_OR_SWAP) != 0
        edges = np.diff(used)
        for low, high in zip(
            np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True
        ):
            yield max(start, (first + low) * page), min(end, (first + high) * page)


def read_words(pid: int, address: int, size: int, buffer: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A view of `buffer`; shorter if memory is unreadable (a device's). Raises TargetError if the process ended."""
    local, remote = _Iovec(buffer.ctypes.data, size), _Iovec(address, size)
    got = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if got < 0 and ctypes.get_errno() in (1, 3):  # EPERM, ESRCH
        raise TargetError(f"the memory of process {pid} cannot be read: {os.strerror(ctypes.get_errno())}")
    return buffer[: max(got, 0) // 8]


def _block_range(mappings: Sequence[Mapping]) -> tuple[np.uint64, np.uint64]:
    """The lowest and the highest possible address of a block: bounds of anonymous writable memory."""
    anonymous = [
        mapping for mapping in mappings if mapping.permissions.startswith("rw") and not mapping.inode
    ]
    low = min((mapping.start for mapping in anonymous), default=0)
    return np.uint64(low), np.uint64(max((mapping.end for mapping in anonymous), default=low))
