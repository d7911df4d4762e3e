"""A process's executable mappings and its execs: perf_event_open(2), one buffer for each CPU.

Reading /proc/PID/maps again and again would miss those of a short program.
"""

import ctypes
import errno
import mmap
import os
import struct
import time
from collections.abc import Iterator

import numpy as np

from memleak_android.host.errors import TracerError
from memleak_android.host.wire.blocks import MAPPING

_PERF_EVENT_OPEN = 298  # on x86_64, the tracer's only architecture
_RING_BYTES = 256 * mmap.PAGESIZE  # of a CPU; a power of two
_DATA_HEAD, _DATA_TAIL = 1024, 1032  # struct perf_event_mmap_page
_ATTRIBUTE_BYTES = 112  # PERF_ATTR_SIZE_VER5
_TYPE_SOFTWARE, _COUNT_DUMMY = 1, 9
_SAMPLE_TID, _SAMPLE_TIME = 1 << 1, 1 << 2
# Bits of perf_event_attr behind read_format: exclude_kernel, mmap, comm, sample_id_all, mmap2, comm_exec, use_clockid.
_FLAGS = 1 << 5 | 1 << 8 | 1 << 9 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 25
_FLAG_CLOEXEC = 8
_LOST, _COMM, _MMAP2 = 2, 3, 10
_COMM_EXEC = 1 << 13  # of misc
_PROT_EXEC = 4
# Behind pid and tid: address, length, offset, major, minor, inode, generation, protection, flags; then the path.
_MAPPED = struct.Struct("<QQQIIQQII")


class SideBand:
    """exec_ns: the last exec, 0 = none. lost: records. Raises TracerError if the kernel refuses them.

    The events are opened for all processes: those of one process would omit its existing threads.
    """

    def __init__(self, pid: int) -> None:
        self.lost = self.exec_ns = 0
        self._pid = pid
        descriptors = [_open(cpu) for cpu in range(os.cpu_count() or 1)]
        self._rings = [mmap.mmap(one, mmap.PAGESIZE + _RING_BYTES) for one in descriptors if one >= 0]

    def mappings(self) -> bytes:
        """The rows of a MAPPINGS block since the last call."""
        return b"".join(row for ring in self._rings for row in self._drain(ring))

    def _drain(self, ring: mmap.mmap) -> Iterator[bytes]:
        head, tail = struct.unpack_from("<QQ", ring, _DATA_HEAD)
        start = tail % _RING_BYTES
        data = (ring[mmap.PAGESIZE :] * 2)[start : start + head - tail] if head != tail else b""
        struct.pack_into("<Q", ring, _DATA_TAIL, head)
        while data:
            kind, misc, length = struct.unpack_from("<IHH", data)
            record, data = data[:length], data[max(length, 8) :]
            if kind == _LOST:
                self.lost += int.from_bytes(record[16:24], "little")
                continue
            pid, _, time_ns = struct.unpack_from("<IIQ", record, length - 16)
            if pid != self._pid:
                continue
            if kind == _COMM and misc & _COMM_EXEC:
                self.exec_ns = max(self.exec_ns, time_ns)
            elif kind == _MMAP2:
                yield self._row(time_ns, record[16:-16])

    def _row(self, time_ns: int, body: bytes) -> bytes:
        address, length, offset, major, minor, inode, _, protection, _ = _MAPPED.unpack_from(body)
        if not protection & _PROT_EXEC:
            return b""
        path = body[_MAPPED.size :].rstrip(b"\0")
        path = b"" if path == b"//anon" else path  # kernel/events/core.c, perf_event_mmap_event()
        path += b"\0" * (-len(path) % 8)
        row = np.zeros(1, MAPPING)
        row[0] = (
            MAPPING.itemsize + len(path), self._pid, time_ns, address, address + length,
            offset, inode, major, minor, protection, len(path),
        )  # fmt: skip
        return row.tobytes() + path


def _open(cpu: int) -> int:
    """The event's descriptor; -1 for a CPU that is offline."""
    attributes = bytearray(_ATTRIBUTE_BYTES)
    struct.pack_into("<IIQ", attributes, 0, _TYPE_SOFTWARE, _ATTRIBUTE_BYTES, _COUNT_DUMMY)
    struct.pack_into("<Q", attributes, 24, _SAMPLE_TID | _SAMPLE_TIME)
    struct.pack_into("<Q", attributes, 40, _FLAGS)
    struct.pack_into("<i", attributes, 92, time.CLOCK_MONOTONIC)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.syscall(_PERF_EVENT_OPEN, bytes(attributes), -1, cpu, -1, _FLAG_CLOEXEC))
    if descriptor < 0 and ctypes.get_errno() != errno.ENODEV:
        reason = os.strerror(ctypes.get_errno())
        raise TracerError(f"the kernel does not report mappings ({reason})", "run as root")
    return descriptor
