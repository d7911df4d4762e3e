"""Scans the writable memory of a stopped local process for words that may refer to a block.

process_vm_readv(2) reads pieces that fit the processor's cache. Kept are 8 bytes for each candidate and one bit for each
word. Pages that never held data are skipped (/proc/PID/pagemap).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import MemleakError, TargetError
from memleak_android.host.machine.binaries import SHIM
from memleak_android.host.machine.local.process import read_text
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.scan.words import Addresses, MemoryScan, memory_scan
from memleak_android.host.wire.blocks import Rows
from memleak_android.unwind.elf_headers import PT_LOAD
from memleak_android.unwind.maps import Mapping

_PIECE_BYTES = 512 << 10  # fastest from here to 1 MiB: it fits the cache, and calls are few
_PAGEMAP_ENTRIES = 1 << 16  # read at once
_IN_MEMORY_OR_SWAP = np.uint64(3 << 62)  # Documentation/admin-guide/mm/pagemap.rst, bits 63 and 62
_RED_ZONE_BYTES = 128  # psABI x86-64 §3.2.2: in use, though below the stack pointer
# top byte ignore: Documentation/arch/arm64/tagged-address-abi.rst
_TAGGED = {"aarch64": np.uint64(2**56 - 1)}
_OWN = ("/memfd:memleak", SHIM)  # the shim's segment, and its file

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_VECTOR = (ctypes.c_void_p, ctypes.c_ulong)  # address, number of struct iovec
_libc.process_vm_readv.argtypes = [ctypes.c_int, *_VECTOR, *_VECTOR, ctypes.c_ulong]
_PAGE_BYTES = 4096
_BYTES_MAX = 64 << 20  # anything larger is not the shim, and would hide memory of the program

Bounds = tuple[int, int]
# <linux/ptrace.h>
_SEIZE, _INTERRUPT, _DETACH, _GETREGSET = 0x4206, 0x4207, 17, 0x4204
_EVENT_STOP = 128
_NT_PRSTATUS = 1  # <linux/elf.h>
_WALL = 0x40000000  # <linux/wait.h>: threads, too
_DEADLINE_S = 2.0  # a thread in vfork() or waiting for a dead disk stops no sooner
_SP = {"x86_64": 19, "aarch64": 31}  # index of the stack pointer among the 8-byte registers (<asm/ptrace.h>)

_libc.ptrace.argtypes = [ctypes.c_ulong, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


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
        return _read_all(thread.tid, (thread,), int(held["timestamp_ns"]))(block_addresses)
    with ThreadPoolExecutor(1, "memory-scan") as worker:
        return worker.submit(_stop_and_read, pid).result()(block_addresses)


def _stop_and_read(pid: int) -> Callable[[Addresses], MemoryScan]:
    """Runs in a thread of its own: the kernel resumes remaining stopped threads as it ends (exit_ptrace())."""
    stopping_ns = time.monotonic_ns()
    with stopped_threads(pid) as threads:
        made = _read_all(pid, threads, stopping_ns)
    stopped_ns = time.monotonic_ns() - stopping_ns
    return lambda block_addresses: replace(made(block_addresses), stopped_ns=stopped_ns)


def _read_all(pid: int, threads: Sequence[StoppedThread], since_ns: int) -> Callable[[Addresses], MemoryScan]:
    """Addresses are computed by the returned function, after the process runs again."""
    timestamp_ns = time.monotonic_ns()
    mappings = parse_maps(read_text(f"/proc/{pid}/maps"))
    mask = _TAGGED.get(os.uname().machine)
    found = _read(pid, mappings, threads, mask)
    registers = np.array([word for thread in threads for word in thread.registers], np.uint64)
    registers = registers if mask is None else registers & mask
    facts = (timestamp_ns, time.monotonic_ns() - since_ns, found.scanned_bytes, len(threads))
    return lambda block_addresses: memory_scan(
        mappings, registers, found.sources(), found.values, *facts, block_addresses=block_addresses
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


def shim_memory(pid: int, mappings: Sequence[Mapping]) -> list[Bounds]:
    """[start, end) of each copy of the shim, by address; without those whose file is unreadable.

    Its words are no references of the program. Its .bss has no name in /proc/PID/maps and may share a mapping with its
    successor, so program headers give its end. The agent does the same (device/agent/scan/scan_pieces.c).
    """
    firsts = (mapping for mapping in mappings if SHIM in mapping.path and mapping.file_offset == 0)
    return [
        (mapping.start, mapping.start + extent)
        for mapping in firsts
        if (extent := _extent(pid, mapping.path))
    ]


def _extent(pid: int, path: str) -> int:
    try:
        segments = ElfFile(f"/proc/{pid}/root{path}").segments
    except (MemleakError, OSError):
        return 0
    end = max(
        (segment.vaddr + segment.memory_bytes for segment in segments if segment.type == PT_LOAD), default=0
    )
    return -(-end // _PAGE_BYTES) * _PAGE_BYTES if end <= _BYTES_MAX else 0


def outside(bounds: Sequence[Bounds], start: int, end: int) -> Iterator[Bounds]:
    """The parts of [start, end) outside of all the sorted bounds."""
    for low, high in bounds:
        if start < low < end:
            yield start, low
        if low < end and high > start:
            start = high
    if start < end:
        yield start, end


@dataclass(frozen=True, slots=True)
class StoppedThread:
    tid: int
    registers: tuple[int, ...]  # general registers, in the order of the kernel's structure
    stack_pointer: int


@contextmanager
def stopped_threads(pid: int) -> Iterator[tuple[StoppedThread, ...]]:
    """Stops all threads of `pid` while the context lasts, by PTRACE_SEIZE and PTRACE_INTERRUPT. Raises TargetError.

    Use it in a thread that ends soon afterwards: the kernel then detaches all its tracees, even those that never stopped,
    which nothing else can do.
    """
    signals: dict[int, int] = {}  # by thread: the signal to deliver on resume
    try:
        while new := [tid for tid in _tids(pid) if tid not in signals]:
            signals.update((tid, 0) for tid in new if _seize(pid, tid))
            for tid in [tid for tid in new if tid in signals]:
                _wait(pid, tid, signals)
        if not signals:
            raise TargetError(f"process {pid} ended before its memory could be scanned")
        yield tuple(_read_registers(tid) for tid in signals)
    finally:
        for tid, pending in signals.items():
            _libc.ptrace(_DETACH, tid, None, pending)


def _tids(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _seize(pid: int, tid: int) -> bool:
    """False if the thread ended meanwhile."""
    if _libc.ptrace(_SEIZE, tid, None, None) == 0:
        _libc.ptrace(_INTERRUPT, tid, None, None)
        return True
    if not os.path.exists(f"/proc/{pid}/task/{tid}"):
        return False
    reason = os.strerror(ctypes.get_errno())
    raise TargetError(
        f"process {pid} could not be stopped: {reason}", "run as root, without a debugger on it"
    )


def _wait(pid: int, tid: int, signals: dict[int, int]) -> None:
    """Waits until the thread stops; forgets one that ends."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            seen, status = os.waitpid(tid, _WALL | os.WNOHANG)
        except ChildProcessError:
            seen, status = tid, 0
        if seen:
            break
        if time.monotonic() > deadline:
            raise TargetError(f"thread {tid} of process {pid} did not stop within {_DEADLINE_S:.0f} s")
        time.sleep(0)
    if not os.WIFSTOPPED(status):
        del signals[tid]
    elif status >> 16 != _EVENT_STOP:
        signals[tid] = os.WSTOPSIG(status) & ~0x80


def _read_registers(tid: int) -> StoppedThread:
    buffer = ctypes.create_string_buffer(1024)
    vector = _Iovec(ctypes.addressof(buffer), len(buffer))
    if _libc.ptrace(_GETREGSET, tid, _NT_PRSTATUS, ctypes.byref(vector)):
        raise TargetError(f"the registers of thread {tid} cannot be read: {os.strerror(ctypes.get_errno())}")
    words = struct.unpack(f"<{vector.bytes // 8}Q", buffer.raw[: vector.bytes // 8 * 8])
    return StoppedThread(tid, words, words[_SP[platform.machine()]])
