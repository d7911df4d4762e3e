"""The contents of the BPF maps as arrays: many entries a system call."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import numpy as np

from memleak_android.host.wire.blocks import KEY_ROW, LIVE_ROW, LOST_MAX, STATUS, Lost, Rows

# struct block, struct key and the counters of accounting.c.
BLOCK = np.dtype(
    [("size", "<u8"), ("timestamp_ns", "<u8"), ("sequence", "<u8"), ("key", "<u8"), ("tid", "<u4"), ("function", "<u4")]
)  # fmt: skip
KEY = np.dtype(
    [("alloc_objects", "<u8"), ("alloc_bytes", "<u8"), ("free_objects", "<u8"), ("free_bytes", "<u8"),
     ("flags", "<u8"), ("is_sent", "<u8")]
)  # fmt: skip
COUNTERS = (
    "alloc_objects", "alloc_bytes", "free_objects", "free_bytes", "untracked_frees", "evidence_records"
)  # fmt: skip
_BATCH = 1 << 16  # more than the fullest bucket holds


class Tables:
    """The maps of a session.

    bcc: the module.
    bpf: its loaded programs.
    pid: the traced process.
    """

    def __init__(self, bcc: Any, bpf: Any, pid: int) -> None:
        self._bcc, self._bpf, self._pid = bcc, bpf, pid

    def live(self, since_ns: int) -> Rows:
        """LIVE_ROWs of the blocks since then: older ones are of a program that exec replaced."""
        addresses, blocks = self._entries("live", BLOCK)
        rows = np.zeros(len(blocks), LIVE_ROW)
        rows["address"], rows["pid"] = addresses, self._pid
        for name in BLOCK.names or ():
            rows[name] = blocks[name]
        return rows[rows["timestamp_ns"] >= since_ns]

    def keys(self) -> Rows:
        """KEY_ROWs."""
        numbers, keys = self._entries("keys", KEY)
        rows = np.zeros(len(keys), KEY_ROW)
        rows["key"], rows["pid"] = numbers, self._pid
        for name in (KEY.names or ())[:-1]:
            rows[name] = keys[name]
        return rows

    def status(self, timestamp_ns: int, cpu_ns: int, lost_mappings: int) -> bytes:
        """The payload of a STATUS block."""
        values = [int(one.value) for one in self._bpf["counters"].values()]
        row = np.zeros(1, STATUS)
        row["timestamp_ns"], row["tracer_cpu_ns"] = timestamp_ns, cpu_ns
        for name, value in zip(COUNTERS, values, strict=False):
            row[name] = value
        row["lost"] = values[len(COUNTERS) : len(COUNTERS) + LOST_MAX]
        row["lost"][0][Lost.MAPPINGS] += lost_mappings
        return row.tobytes()

    def _entries(self, name: str, value: np.dtype[np.void]) -> tuple[Rows, Rows]:
        """Keys (u64) and values of a hash map."""
        descriptor = self._bpf[name].map_fd
        keys: list[Any] = []
        values: list[Any] = []
        cursor, error = ctypes.c_uint32(0), 0
        while error != errno.ENOENT:
            some_keys, some_values = np.empty(_BATCH, "<u8"), np.empty(_BATCH, value)
            count = ctypes.c_uint32(_BATCH)
            error = self._lookup(descriptor, cursor, bool(keys), some_keys, some_values, count)
            keys.append(some_keys[: count.value].copy())
            values.append(some_values[: count.value].copy())
        return np.concatenate(keys), np.concatenate(values)

    def _lookup(
        self,
        descriptor: int,
        cursor: ctypes.c_uint32,
        goes_on: bool,
        keys: Any,
        values: Any,
        count: ctypes.c_uint32,
    ) -> int:
        """Reads one batch. 0, or ENOENT after the last entry. Raises OSError (before Linux 5.6 EINVAL)."""
        result = self._bcc.lib.bpf_lookup_batch(
            descriptor,
            ctypes.byref(cursor) if goes_on else None,
            ctypes.byref(cursor),
            keys.ctypes.data,
            values.ctypes.data,
            ctypes.byref(count),
        )
        error = ctypes.get_errno() if result else 0
        if error not in (0, errno.ENOENT):
            raise OSError(error, f"could not read the map: {os.strerror(error)}")
        return error
