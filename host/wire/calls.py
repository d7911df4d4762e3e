"""Mirrors device/wire_calls.h: calls of any functions as structured arrays."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from memleak_android.host.errors import MemleakError
from memleak_android.host.wire.blocks import Rows

ARGUMENTS = 6
RETURN = 6  # the number of the return value among the arguments
FUNCTIONS_MAX = 4096
SUB_BUCKETS, BUCKETS = 16, 624


class CallType(IntEnum):
    ENTRY = 1
    EXIT = 2
    UNPAIRED = 3


class CaptureKind(IntEnum):
    """enum ml_snoop_capture_kind of device/bpf/snoop/tables.h."""

    STRING = 1
    BYTES = 2
    PATH = 3


class Comparison(IntEnum):
    """enum ml_snoop_comparison of device/bpf/snoop/tables.h."""

    EQ = 1
    NE = 2
    LT = 3
    LE = 4
    GT = 5
    GE = 6
    AND = 7
    SIGNED = 8  # added to the others


class ProbeWay(IntEnum):
    MULTI = 1
    PERF = 2


class ProbeKind(IntEnum):
    ENTRY = 0
    RETURN = 1
    INSTRUCTION = 2
    TAIL = 3


CALL = np.dtype(
    [
        ("data_offset", "<u4"), ("type", "<u2"), ("n_captures", "<u2"), ("timestamp_ns", "<u8"), ("call", "<u8"),
        ("function", "<u4"), ("depth", "<u4"), ("tgid", "<u4"), ("tid", "<u4"), ("duration_ns", "<u8"),
        ("values", "<u8", (ARGUMENTS,)),
    ]
)  # fmt: skip
CAPTURE = np.dtype([("argument", "<u2"), ("bytes", "<u2"), ("error", "<i4")])
CALLS = np.dtype([("count", "<u4"), ("data_bytes", "<u4")])
TOTALS = np.dtype([("timestamp_ns", "<u8"), ("count", "<u4"), ("final", "<u4")])
STATISTICS = np.dtype(
    [
        ("function", "<u4"), ("n_buckets", "<u4"), ("calls", "<u8"), ("returns", "<u8"), ("unpaired", "<u8"),
        ("filtered", "<u8"), ("hidden", "<u8"), ("total_ns", "<u8"), ("min_ns", "<u8"), ("max_ns", "<u8"),
    ]
)  # fmt: skip
BUCKET = np.dtype([("bucket", "<u4"), ("reserved", "<u4"), ("count", "<u8")])
PATCHED_CODE = -1  # ML_PROBE_ERROR_PATCHED
PROBE_RESULT = np.dtype(
    [("function", "<u4"), ("pid", "<u4"), ("error", "<i4"), ("way", "<u2"), ("kind", "<u2")]
)


class BadCalls(MemleakError):
    """A payload that contradicts its block."""


@dataclass(frozen=True, slots=True)
class Calls:
    """One CALLS block. rows: CALL, in the ring's order. data: all captures."""

    rows: Rows
    data: bytes

    def captures(self, offset: int, count: int) -> dict[int, bytes | OSError]:
        """The memory that a call's arguments pointed to, by argument; an OSError where it could not be read."""
        found: dict[int, bytes | OSError] = {}
        for _ in range(count):
            if offset + CAPTURE.itemsize > len(self.data):
                raise BadCalls("a capture leaves its block")
            argument, size, error = np.frombuffer(self.data, CAPTURE, 1, offset)[0].tolist()
            offset += CAPTURE.itemsize
            found[argument] = OSError(error, "") if error else self.data[offset : offset + size]
            offset += (size + 7) & ~7
        return found


def decode_calls(payload: bytes) -> Calls:
    head = _head(payload, CALLS)
    end = CALLS.itemsize + int(head["count"]) * CALL.itemsize
    if end + int(head["data_bytes"]) > len(payload):
        raise BadCalls("a block of calls is shorter than its counts")
    return Calls(np.frombuffer(payload, CALL, int(head["count"]), CALLS.itemsize), payload[end:])


@dataclass(frozen=True, slots=True)
class CountedFunction:
    """row: STATISTICS; buckets: histogram of durations (device/wire_calls.h)."""

    row: Rows
    buckets: Rows


def decode_statistics(payload: bytes) -> list[CountedFunction]:
    """An entry for each function."""
    found, at = [], TOTALS.itemsize
    for _ in range(int(_head(payload, TOTALS)["count"])):
        if at + STATISTICS.itemsize > len(payload):
            raise BadCalls("a block of statistics is shorter than its counts")
        row = np.frombuffer(payload, STATISTICS, 1, at)[0]
        at += STATISTICS.itemsize
        size = int(row["n_buckets"]) * BUCKET.itemsize
        if at + size > len(payload):
            raise BadCalls("a block of statistics is shorter than its counts")
        found.append(CountedFunction(row, np.frombuffer(payload, BUCKET, int(row["n_buckets"]), at)))
        at += size
    return found


def decode_probe_results(payload: bytes) -> Rows:
    return np.frombuffer(payload, PROBE_RESULT, len(payload) // PROBE_RESULT.itemsize)


def _head(payload: bytes, dtype: np.dtype[np.void]) -> np.void:
    if len(payload) < dtype.itemsize:
        raise BadCalls("a block has no head")
    head: np.void = np.frombuffer(payload, dtype, 1)[0]
    return head
