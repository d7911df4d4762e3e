"""PROCESS, MAPS and MAPPINGS blocks of the traced process."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from memleak_android.host.tracers.bcc.side_band import SideBandRecord
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import MAPPING, PROCESS, Block, BlockKind, ProcessEvent

_PROT_EXEC = 4
# pid, tid, address, length, offset, major, minor, inode, generation, protection, flags
_MMAP2 = struct.Struct("<IIQQQIIQQII")


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
