"""A process's mappings and execs, and their blocks: perf_event_open(2), one buffer for each CPU.

The events are opened for all processes: those of one process would omit its existing threads.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memleak_android.host.errors import TracerError
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import MAPPING, PROCESS, Block, BlockKind, ProcessEvent

_SYSCALL = {"x86_64": 298}
_PAGES = 256  # in the buffer of a CPU; a power of two
_DATA_HEAD, _DATA_TAIL = 1024, 1032  # struct perf_event_mmap_page
_ATTRIBUTE_BYTES = 112  # PERF_ATTR_SIZE_VER5
_TYPE_SOFTWARE, _COUNT_DUMMY = 1, 9
_SAMPLE_TID, _SAMPLE_TIME = 1 << 1, 1 << 2
# Bits of perf_event_attr behind read_format: exclude_kernel, mmap, comm, sample_id_all, mmap2, comm_exec, use_clockid.
_FLAGS = 1 << 5 | 1 << 8 | 1 << 9 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 25
_FLAG_CLOEXEC = 8
LOST, COMM, MMAP2 = 2, 3, 10
_COMM_EXEC = 1 << 13  # of misc
_HEADER = struct.Struct("<IHH")
_PROT_EXEC = 4
# pid, tid, address, length, offset, major, minor, inode, generation, protection, flags
_MMAP2 = struct.Struct("<IIQQQIIQQII")


@dataclass(frozen=True, slots=True)
class SideBandRecord:
    """body: the record without its header and its trailer, which holds time_ns."""

    kind: int
    misc: int
    time_ns: int
    body: bytes

    @property
    def is_exec(self) -> bool:
        return self.kind == COMM and bool(self.misc & _COMM_EXEC)


class SideBand:
    """The records of process `pid`. Raises TracerError if the kernel refuses them."""

    def __init__(self, pid: int) -> None:
        self.lost = 0
        self._pid = pid
        self._rings: list[tuple[int, mmap.mmap]] = []
        for cpu in range(os.cpu_count() or 1):
            descriptor = _open(cpu)
            if descriptor >= 0:
                pages = mmap.mmap(descriptor, (_PAGES + 1) * mmap.PAGESIZE)
                self._rings.append((descriptor, pages))

    def records(self) -> list[SideBandRecord]:
        """The records since the last call, in order of time."""
        found = [record for _, pages in self._rings for record in self._drain(pages)]
        return sorted(found, key=lambda record: record.time_ns)

    def close(self) -> None:
        for descriptor, pages in self._rings:
            pages.close()
            os.close(descriptor)
        self._rings = []

    def _drain(self, pages: mmap.mmap) -> Iterator[SideBandRecord]:
        (head,) = struct.unpack_from("<Q", pages, _DATA_HEAD)
        (tail,) = struct.unpack_from("<Q", pages, _DATA_TAIL)
        if head == tail:
            return
        size = _PAGES * mmap.PAGESIZE
        data = pages[mmap.PAGESIZE :]
        at, end = tail % size, tail % size + head - tail
        data = (data + data)[at:end]
        struct.pack_into("<Q", pages, _DATA_TAIL, head)
        at = 0
        while at < len(data):
            kind, misc, length = _HEADER.unpack_from(data, at)
            if kind == LOST:
                self.lost += int(struct.unpack_from("<Q", data, at + 16)[0])
            elif length >= _HEADER.size + 16:
                pid, _, when = struct.unpack_from("<IIQ", data, at + length - 16)
                if pid == self._pid:
                    body = data[at + _HEADER.size : at + length - 16]
                    yield SideBandRecord(kind, misc, when, body)
            at += max(length, _HEADER.size)


def _open(cpu: int) -> int:
    """The event's descriptor; -1 for a CPU that is offline."""
    attributes = bytearray(_ATTRIBUTE_BYTES)
    struct.pack_into("<IIQ", attributes, 0, _TYPE_SOFTWARE, _ATTRIBUTE_BYTES, _COUNT_DUMMY)
    struct.pack_into("<Q", attributes, 24, _SAMPLE_TID | _SAMPLE_TIME)
    struct.pack_into("<Q", attributes, 40, _FLAGS)
    struct.pack_into("<i", attributes, 92, time.CLOCK_MONOTONIC)
    number = _SYSCALL[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * _ATTRIBUTE_BYTES).from_buffer(attributes)
    descriptor = int(libc.syscall(number, buffer, -1, cpu, -1, _FLAG_CLOEXEC))
    if descriptor < 0 and ctypes.get_errno() != errno.ENODEV:
        reason = os.strerror(ctypes.get_errno())
        raise TracerError(f"the kernel does not report mappings ({reason})", "run as root")
    return descriptor


def maps_text(pid: int) -> str:
    """/proc/PID/maps; "" if the process has ended or not begun."""
    try:
        return Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    except OSError:
        return ""


def maps_block(pid: int, timestamp_ns: int, text: str) -> Block:
    return payloads.encode_maps(payloads.Maps(timestamp_ns, pid, text))


def process_block(pid: int, event: ProcessEvent, timestamp_ns: int | None = None, status: int = 0) -> Block:
    row = np.zeros(1, PROCESS)
    row["timestamp_ns"] = time.monotonic_ns() if timestamp_ns is None else timestamp_ns
    row["pid"], row["event"], row["status"] = pid, event, status
    try:
        row["comm"] = Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")[:15]
    except OSError:
        row["comm"] = b""
    return Block(BlockKind.PROCESS, row.tobytes())


def mappings_block(pid: int, records: Sequence[SideBandRecord]) -> Block | None:
    """The executable mappings among MMAP2 records; None if there are none."""
    rows = b"".join(_mapping(pid, record) for record in records)
    return Block(BlockKind.MAPPINGS, rows) if rows else None


def _mapping(pid: int, record: SideBandRecord) -> bytes:
    _, _, address, length, offset, major, minor, inode, _, protection, _ = _MMAP2.unpack_from(record.body)
    if not protection & _PROT_EXEC:
        return b""
    path = record.body[_MMAP2.size :].rstrip(b"\0")
    path = b"" if path == b"//anon" else path  # kernel/events/core.c, perf_event_mmap_event()
    path += b"\0" * (-len(path) % 8)
    row = np.zeros(1, MAPPING)
    row["record_bytes"], row["path_bytes"] = MAPPING.itemsize + len(path), len(path)
    row["pid"], row["timestamp_ns"], row["start"], row["end"] = pid, record.time_ns, address, address + length
    row["file_offset"], row["inode"] = offset, inode
    row["device_major"], row["device_minor"], row["protection"] = major, minor, protection
    return row.tobytes() + path
