"""A session of the tracer `bcc`: the agent's side of docs/wire-protocol.md."""

import contextlib
import ctypes
import errno
import mmap
import os
import select
import struct
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, BinaryIO

import numpy as np

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.local.process import read_text
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.tracers.bcc.programs import Programs
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import (
    END,
    EVIDENCE,
    HELLO,
    KEY_ROW,
    LIVE_ROW,
    LOST_MAX,
    MAPPING,
    MAPPING_SHARED,
    PROCESS,
    STATUS,
    WIRE_VERSION,
    ArchNumber,
    Block,
    BlockKind,
    Collector,
    Lost,
    ProcessEvent,
    Reason,
    Rows,
    encode_block,
)

_POLL_S, _STATUS_S = 0.02, 0.25
_CHUNK_ROWS = 1 << 17
_EVIDENCE_BYTES = 1 << 20  # of a block

# struct block (the head of evidence), struct key_counts and the counters of accounting.c.
_BLOCK = np.dtype([(name, EVIDENCE[name]) for name in (EVIDENCE.names or ())[:10]])
_COUNTED = ("alloc_objects", "alloc_bytes", "free_objects", "free_bytes")
_KEY = np.dtype([(name, "<u8") for name in (*_COUNTED, "flags", "is_sent")])
_COUNTERS = (*_COUNTED, "untracked_frees", "evidence_records")
_CONSTANTS = {
    "STACK_BYTES": 1 << 14,  # largest stack slice; a power of two
    "MAX_KEYS": 1 << 20,
    "MAX_THREADS": 1024,
    "RING_PAGES": 4096,
    "LOST_MAX": LOST_MAX,
}
_SHIFT, _BITS = 16, 1 << 18
_SPAN_MAX = _BITS  # granules of one mapping; a larger one sets all bits anyway


class Session:
    """Accounting of one process.

    bcc: the module. request: of local/start.py. pid: of the process. gate: a line into it releases the held command, -1 = the
    process runs already. output: takes blocks.
    """

    def __init__(self, bcc: Any, request: dict[str, Any], pid: int, gate: int, output: BinaryIO) -> None:
        self._bcc, self._request, self._output = bcc, request, output
        self._pid, self._gate = pid, gate
        self._evidence = bytearray()
        self._snapshots = 0
        self._maps = ""
        self._ended: tuple[Reason, int] | None = None

    def run(self, descriptor: int) -> None:
        """descriptor: of the host's lines. Raises TargetError or TracerError before the session has begun."""
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            raise TargetError(f"process {self._pid} is gone", "name one that runs") from None
        constants = _CONSTANTS | self._request["constants"]
        self._programs = Programs(self._bcc, constants, self._request["probes"])
        self._bpf = self._programs.bpf
        self._side_band = SideBand(self._pid)  # now: compiling takes so long that its buffers would fill
        self._bpf["ring"].open_ring_buffer(self._take_evidence)
        self._write_row(
            BlockKind.HELLO, HELLO, wire_version=WIRE_VERSION, arch=ArchNumber.X86_64, collector=Collector.BPF,
            page_bytes=os.sysconf("SC_PAGESIZE"), pid=self._pid, monotonic_ns=time.monotonic_ns(),
            realtime_ns=time.time_ns(), agent_version=version("memleak-android").encode()[:23],
        )  # fmt: skip
        self._write_process(ProcessEvent.START, time.monotonic_ns())
        if self._gate < 0:  # the side band reports all mappings of a command
            self._update_code_map()
            self._write(payloads.encode_maps(payloads.Maps(time.monotonic_ns(), self._pid, self._maps)))
        try:
            self._programs.attach(self._pid)
        except TracerError:
            if select.select([self._pidfd], [], [], 0)[0]:
                raise TargetError(f"process {self._pid} ended before all probes were placed") from None
            raise
        if self._gate >= 0:
            os.write(self._gate, b"\n")
        self._serve(descriptor)
        self._finish()

    def _serve(self, descriptor: int) -> None:
        """Runs until the target ends or the host stops the session."""
        due = 0.0
        while self._ended is None:
            ready = select.select([descriptor, self._pidfd], [], [], _POLL_S)[0]
            if descriptor in ready:
                read = os.read(descriptor, 4096)  # whole lines: the host writes each at once
                for line in read.splitlines():
                    self._obey(line)
                if not read:
                    self._ended = (Reason.INPUT_CLOSED, 0)
            self._drain()
            if self._pidfd in ready and self._ended is None:
                self._ended = (Reason.TARGET_EXIT, os.waitpid(self._pid, 0)[1] if self._gate >= 0 else -1)
            if time.monotonic() >= due:
                due = time.monotonic() + _STATUS_S
                self._write_status()

    def _obey(self, line: bytes) -> None:
        if line == b"stop":
            self._ended = (Reason.STOPPED, 0)
        elif line == b"snapshot":
            self._drain()
            self._write_snapshot()

    def _finish(self) -> None:
        self._programs.detach()
        self._drain()
        assert self._ended is not None
        reason, status = self._ended
        if reason == Reason.TARGET_EXIT:
            self._write_process(ProcessEvent.EXIT, time.monotonic_ns(), status)
        self._write_snapshot()
        self._write_row(BlockKind.END, END, reason=reason, status=status, timestamp_ns=time.monotonic_ns())

    def _drain(self) -> None:
        """Writes mappings before stacks, which need them."""
        self._take_mappings()
        self._bpf.ring_buffer_consume()
        self._write_evidence()

    def _take_mappings(self) -> None:
        """Reports an exec and mappings, and updates the map of code that stack keys are made with."""
        last_exec_ns, rows = self._side_band.exec_ns, self._side_band.mappings()
        if self._side_band.exec_ns != last_exec_ns:
            self._write_process(ProcessEvent.EXEC, self._side_band.exec_ns)
        if rows:
            self._write(Block(BlockKind.MAPPINGS, rows))
        if self._gate < 0 or self._side_band.exec_ns:  # a held command is still another program
            self._update_code_map()

    def _update_code_map(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            maps = read_text(f"/proc/{self._pid}/maps")
            if maps and maps != self._maps:
                self._maps = maps
                table = self._bpf["code"]
                table[0] = table.Leaf.from_buffer_copy(code_map(maps))

    def _take_evidence(self, context: object, data: int, size: int) -> int:
        """Called once for each stack, not for each call."""
        self._evidence += ctypes.string_at(data, size)
        if len(self._evidence) > _EVIDENCE_BYTES:
            self._take_mappings()  # without a map of code, stacks come faster than they are read here
            self._write_evidence()
        return 0

    def _write_evidence(self) -> None:
        if self._evidence:
            self._write(Block(BlockKind.EVIDENCE, bytes(self._evidence)))
            self._evidence.clear()

    def _write_snapshot(self) -> None:
        self._snapshots += 1
        keys, blocks = self._rows("keys", _KEY, KEY_ROW), self._rows("live", _BLOCK, LIVE_ROW)
        self._write_chunks(BlockKind.KEYS, keys)
        # Blocks older than the exec are of the program that it replaced.
        self._write_chunks(BlockKind.LIVE, blocks[blocks["timestamp_ns"] >= self._side_band.exec_ns])
        self._write_status()

    def _write_chunks(self, kind: BlockKind, rows: Rows) -> None:
        now = time.monotonic_ns()
        for start in range(0, max(len(rows), 1), _CHUNK_ROWS):
            end = start + _CHUNK_ROWS
            chunk = payloads.Chunk(self._snapshots, now, end >= len(rows), rows[start:end])
            self._write(payloads.encode_chunk(kind, chunk))

    def _rows(self, name: str, value: np.dtype[np.void], row: np.dtype[np.void]) -> Rows:
        """The entries of a hash map, by one system call. Raises OSError before Linux 5.6."""
        table, cursor = self._bpf[name], ctypes.c_uint32(0)
        keys, values = np.empty(table.max_entries, "<u8"), np.empty(table.max_entries, value)
        count = ctypes.c_uint32(table.max_entries)
        arrays = keys.ctypes.data, values.ctypes.data
        result = self._bcc.lib.bpf_lookup_batch(
            table.map_fd, None, ctypes.byref(cursor), *arrays, ctypes.byref(count)
        )
        if result and (error := ctypes.get_errno()) != errno.ENOENT:  # ENOENT: these are all
            raise OSError(error, f"could not read the map: {os.strerror(error)}")
        rows = np.zeros(count.value, row)
        rows["key"] = keys[: count.value]
        for field in set(row.names or ()) & set(value.names or ()):
            rows[field] = values[field][: count.value]
        rows["pid"] = self._pid
        return rows

    def _write_status(self) -> None:
        values = [int(one.value) for one in self._bpf["counters"].values()]
        counted, lost = dict(zip(_COUNTERS, values, strict=False)), values[len(_COUNTERS) :]
        lost[Lost.MAPPINGS] += self._side_band.lost
        now, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        self._write_row(
            BlockKind.STATUS, STATUS, timestamp_ns=now, tracer_cpu_ns=cpu_ns, lost=lost, **counted
        )

    def _write_process(self, event: ProcessEvent, timestamp_ns: int, status: int = 0) -> None:
        fields = {"timestamp_ns": timestamp_ns, "pid": self._pid, "event": event, "status": status}
        self._write_row(BlockKind.PROCESS, PROCESS, **fields)

    def _write_row(self, kind: BlockKind, dtype: np.dtype[np.void], **fields: Any) -> None:
        row = np.zeros(1, dtype)
        for name, value in fields.items():
            row[name] = value
        self._write(Block(kind, row.tobytes()))

    def _write(self, block: Block) -> None:
        self._output.write(encode_block(block))
        self._output.flush()


def code_map(maps_text: str) -> bytes:
    """struct code_map of accounting.c, by which words of a stack enter its key. maps_text: /proc/PID/maps.

    One bit for each 64 KiB, at a hash of the address. A word counts if it points into code. It also counts if it points to
    where the kernel maps files and not to a known mapping: a library may just have been mapped there.
    """
    no_code, code = np.zeros(_BITS, bool), np.zeros(_BITS, bool)
    low, high = 1, 1
    for mapping in parse_maps(maps_text):
        first, last = mapping.start >> _SHIFT, (mapping.end - 1) >> _SHIFT
        if first >> 31:  # vsyscall belongs to the kernel
            continue
        granules = np.arange(first, min(last, first + _SPAN_MAX) + 1, dtype=np.uint64)
        hashes = (granules ^ granules >> np.uint64(18)) & np.uint64(_BITS - 1)
        is_code = "x" in mapping.permissions
        (code if is_code else no_code)[hashes] = True
        if is_code and mapping.start >> 44 not in (5, 7):
            low, high = min(low, mapping.start) if high > 1 else mapping.start, max(high, mapping.end)
    bits = np.packbits(no_code & ~code, bitorder="little")
    return bits.tobytes() + np.array([low, high], "<u8").tobytes()


# Reading /proc/PID/maps again and again would miss those of a short program.
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
        address, length, offset, major, minor, inode, _, protection, flags = _MAPPED.unpack_from(body)
        if not protection & _PROT_EXEC:
            return b""
        protection |= MAPPING_SHARED if flags & mmap.MAP_SHARED else 0
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
