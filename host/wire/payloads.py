"""Payloads of blocks to arrays and back.

Arrays are little-endian structured NumPy arrays without Python objects. Decoders check every length against the payload
before they use it: a block with a valid checksum may still come from a broken or hostile writer. Then they raise
MalformedBlock.
"""

import struct
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import MemleakError
from memleak_android.host.profile.coverage import Answer, Condition
from memleak_android.host.profile.coverage import Reason as Gap
from memleak_android.host.wire import (
    blocks,
    frame_chains,
    interrupted_stack,
    python_frames,
    sparse_stack,
    stack_tail,
)
from memleak_android.host.wire.blocks import Block, BlockKind, EvidenceFlag, Reason, Rows
from memleak_android.host.wire.packed import has, structures
from memleak_android.host.wire.python_frames import PythonCode


class MalformedBlock(MemleakError):
    """A whole block whose contents contradict themselves."""

    def __init__(self, kind: BlockKind, reason: str) -> None:
        super().__init__(f"malformed {kind.name} block: {reason}")
        self.kind = kind
        self.reason = reason


# No honest writer exceeds these. Within them, the host's sums and conversions cannot overflow.
_LIMITS = {
    "pid": 1 << 31,  # PID_MAX_LIMIT is 2^22 (linux/threads.h)
    "tid": 1 << 31,
    "parent": 1 << 31,
    "timestamp_ns": 1 << 62,
    "monotonic_ns": 1 << 62,
    "realtime_ns": 1 << 62,
    "size": 1 << 57,  # of user space, with five-level page tables
    "alloc_objects": 1 << 62,
    "alloc_bytes": 1 << 62,
    "free_objects": 1 << 62,
    "free_bytes": 1 << 62,
    "sequence": 1 << 63,
    "duration_ns": 1 << 62,
    "mark": 1 << 62,
    "bound_bytes": 1 << 62,
    "bytes": 1 << 62,
}


def _check_numbers(kind: BlockKind, rows: Rows) -> None:
    for name in rows.dtype.names or ():
        if name in _LIMITS and len(rows) and int(rows[name].max()) >= _LIMITS[name]:
            raise MalformedBlock(kind, f"{name} of {int(rows[name].max())}")


def _struct(kind: BlockKind, dtype: np.dtype[np.void], payload: bytes) -> np.void:
    if len(payload) < dtype.itemsize:
        raise MalformedBlock(kind, f"{len(payload)} bytes, at least {dtype.itemsize} expected")
    rows = np.frombuffer(payload, dtype, 1)
    _check_numbers(kind, rows)
    return rows[0]  # type: ignore[no-any-return]


decode_hello = partial(_struct, BlockKind.HELLO, blocks.HELLO)
decode_status = partial(_struct, BlockKind.STATUS, blocks.STATUS)
decode_end = partial(_struct, BlockKind.END, blocks.END)


def decode_exit_stop(payload: bytes) -> np.void:
    row = _struct(BlockKind.EXIT_STOP, blocks.EXIT_STOP, payload)
    if row["n_registers"] > blocks.EXIT_REGISTERS:
        raise MalformedBlock(BlockKind.EXIT_STOP, f"{int(row['n_registers'])} registers")
    return row


@dataclass(frozen=True, slots=True)
class EvidenceBatch:
    """n evidence records of one block.

    rows: (n,) of EVIDENCE. registers, known: (n, r), r the largest n_registers of the batch, in pt_regs order;
    unknown registers are 0. The stack slice of record i is
    data[stack_offset[i] : stack_offset[i] + rows["stack_bytes"][i]]; offsets are multiples of 8. With flag
    STACK_SPARSE, data has some words of the slice instead, and the others are 0 (sparse_stack.py).
    chain_offset: offset in data of the record's chain of frame records, -1 = none (frame_chains.py).
    above_offset: likewise of its words of the stack above the slice (stack_tail.py).
    python_offset: likewise of its frames in Python (python_frames.py).
    interrupted_offset: likewise of the stack that its signal handler interrupted (interrupted_stack.py).
    """

    rows: Rows
    registers: NDArray[np.uint64]
    known: NDArray[np.bool_]
    stack_offset: NDArray[np.int64]
    data: NDArray[np.uint8]
    chain_offset: NDArray[np.int64]
    above_offset: NDArray[np.int64]
    python_offset: NDArray[np.int64]
    interrupted_offset: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def _record_offsets(kind: BlockKind, payload: bytes, least: int) -> NDArray[np.int64]:
    """Offsets of records that each begin with their own length (the only loop over records)."""
    offsets, at, end = [], 0, len(payload)
    unpack = struct.Struct("<I").unpack_from
    while at < end:
        size = unpack(payload, at)[0] if end - at >= 4 else 0
        if size < least or size % 8 or size > end - at:
            raise MalformedBlock(kind, f"record of {size} bytes at byte {at} of {end}")
        offsets.append(at)
        at += size
    return np.array(offsets, dtype=np.int64)


def _gather(
    kind: BlockKind, data: NDArray[np.uint8], offsets: NDArray[np.int64], dtype: np.dtype[np.void]
) -> Rows:
    rows = structures(data, offsets, dtype)
    _check_numbers(kind, rows)
    return rows


def _refuse(fault: int | None, offsets: NDArray[np.int64], what: str) -> None:
    if fault is not None:
        raise MalformedBlock(BlockKind.EVIDENCE, f"record at byte {offsets[fault]}: its {what}")


def decode_evidence(payload: bytes) -> EvidenceBatch:
    offsets = _record_offsets(BlockKind.EVIDENCE, payload, blocks.EVIDENCE.itemsize)
    data = np.frombuffer(payload, np.uint8)
    rows = _gather(BlockKind.EVIDENCE, data, offsets, blocks.EVIDENCE)
    n_registers = rows["n_registers"].astype(np.int64)
    stack_offset = offsets + blocks.EVIDENCE.itemsize + 8 * n_registers
    sparse = has(rows, EvidenceFlag.STACK_SPARSE)
    stack_bytes = np.where(sparse, 0, rows["stack_bytes"].astype(np.int64))
    used = stack_offset - offsets + stack_bytes
    bad = (
        (used > rows["record_bytes"])
        | (n_registers > blocks.REGISTERS_MAX)
        | (rows["n_fixups"] > blocks.FIXUPS)
    )
    if bad.any():
        raise MalformedBlock(
            BlockKind.EVIDENCE, f"record at byte {offsets[bad][0]} is longer than its record_bytes"
        )
    slots = np.arange(n_registers.max(initial=0))
    present = slots < n_registers[:, None]
    known = present & ((rows["registers_known"][:, None] >> slots.astype(np.uint64)) & np.uint64(1)).astype(
        bool
    )
    words = np.frombuffer(payload, "<u8")
    end = offsets + rows["record_bytes"].astype(np.int64)
    fault = sparse_stack.fault(data, rows, stack_offset, end, np.flatnonzero(sparse))
    _refuse(fault, offsets, "words of the stack")
    chain_offset = frame_chains.offsets(data, rows, stack_offset)
    _refuse(frame_chains.fault(data, chain_offset, end), offsets, "frame records")
    behind = frame_chains.ends(data, rows, stack_offset)
    above_offset = np.where(has(rows, EvidenceFlag.STACK_ABOVE), behind, -1)
    _refuse(stack_tail.fault(data, rows, above_offset, end), offsets, "words above the slice")
    interrupted_offset = np.where(has(rows, EvidenceFlag.INTERRUPTED), behind, -1)
    _refuse(interrupted_stack.fault(data, rows, interrupted_offset, end), offsets, "interrupted stack")
    behind += stack_tail.sizes(data, above_offset) + interrupted_stack.sizes(data, interrupted_offset)
    python_offset = np.where(has(rows, EvidenceFlag.PYTHON_FRAMES), behind, -1)
    _refuse(python_frames.fault(data, python_offset, end), offsets, "frames in Python")
    index = np.where(present, (offsets[:, None] + blocks.EVIDENCE.itemsize) // 8 + slots, 0)
    registers = np.where(known, words[index] if len(words) else 0, np.uint64(0))
    return EvidenceBatch(
        rows,
        registers,
        known,
        stack_offset,
        data,
        chain_offset,
        above_offset,
        python_offset,
        interrupted_offset,
    )


def decode_python_code(payload: bytes) -> list[PythonCode]:
    offsets = _record_offsets(BlockKind.PYTHON_CODE, payload, blocks.PYTHON_CODE.itemsize)
    return python_frames.decode_codes(payload, offsets.tolist())


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a snapshot's rows (LIVE_ROW, KEY_ROW, SITE_ROW or HELD_ROW)."""

    snapshot: int
    timestamp_ns: int
    last: bool
    rows: Rows


_CHUNK_ROWS = {
    BlockKind.LIVE: blocks.LIVE_ROW,
    BlockKind.KEYS: blocks.KEY_ROW,
    BlockKind.SITES: blocks.SITE_ROW,
    BlockKind.HELD: blocks.HELD_ROW,
    BlockKind.PEAK: blocks.HELD_ROW,
}


def decode_chunk(block: Block) -> Chunk:
    """A LIVE, KEYS, SITES, HELD or PEAK block: the header, then one column per field of the row."""
    kind = BlockKind(block.kind)
    header, row = _struct(kind, blocks.LIVE, block.payload), _CHUNK_ROWS[kind]
    count = int(header["count"])
    rows = _from_columns(kind, block.payload, blocks.LIVE.itemsize, row, count)[0]
    return Chunk(int(header["snapshot"]), int(header["timestamp_ns"]), bool(header["last"]), rows)


def decode_high_water(payload: bytes) -> tuple[np.void, Rows]:
    """The header (HIGH_WATER) and its rows (HIGH_WATER_ROW)."""
    header = _struct(BlockKind.HIGH_WATER, blocks.HIGH_WATER, payload)
    at, count = blocks.HIGH_WATER.itemsize, int(header["count"])
    return header, _from_columns(BlockKind.HIGH_WATER, payload, at, blocks.HIGH_WATER_ROW, count)[0]


def _from_columns(
    kind: BlockKind, payload: bytes, at: int, dtype: np.dtype[np.void], count: int
) -> tuple[Rows, int]:
    if count * dtype.itemsize > len(payload) - at:
        raise MalformedBlock(kind, f"{count} rows of {dtype.itemsize} bytes in a payload of {len(payload)}")
    rows = np.empty(count, dtype)
    for name in dtype.names or ():
        column = dtype[name]
        rows[name] = np.frombuffer(payload, column, count, at)
        at += count * column.itemsize
    _check_numbers(kind, rows)
    return rows, at


def _columns(rows: Rows) -> bytes:
    return b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in rows.dtype.names or ())


def encode_chunk(kind: BlockKind, chunk: Chunk) -> Block:
    header = struct.pack("<QQII", chunk.snapshot, chunk.timestamp_ns, len(chunk.rows), int(chunk.last))
    return Block(kind, header + _columns(chunk.rows))


def _pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


@dataclass(frozen=True, slots=True)
class Maps:
    timestamp_ns: int
    pid: int
    text: str


def decode_maps(payload: bytes) -> Maps:
    header = _struct(BlockKind.MAPS, blocks.MAPS, payload)
    text = payload[blocks.MAPS.itemsize : blocks.MAPS.itemsize + int(header["text_bytes"])]
    return Maps(int(header["timestamp_ns"]), int(header["pid"]), text.decode("utf-8", "surrogateescape"))


def encode_maps(maps: Maps) -> Block:
    text = maps.text.encode("utf-8", "surrogateescape")
    return Block(BlockKind.MAPS, _pad(struct.pack("<QII", maps.timestamp_ns, maps.pid, len(text)) + text))


def decode_mappings(payload: bytes) -> tuple[Rows, list[str]]:
    """Rows of MAPPING, and their paths."""
    offsets = _record_offsets(BlockKind.MAPPINGS, payload, blocks.MAPPING.itemsize)
    rows = _gather(BlockKind.MAPPINGS, np.frombuffer(payload, np.uint8), offsets, blocks.MAPPING)
    if (rows["path_bytes"] > rows["record_bytes"] - blocks.MAPPING.itemsize).any():
        raise MalformedBlock(BlockKind.MAPPINGS, "a path is longer than its record")
    starts = (offsets + blocks.MAPPING.itemsize).tolist()
    sizes = rows["path_bytes"].tolist()
    cuts = zip(starts, sizes, strict=True)
    return rows, [
        payload[at : at + size].rstrip(b"\0").decode("utf-8", "surrogateescape") for at, size in cuts
    ]


def _array(kind: BlockKind, dtype: np.dtype[np.void], payload: bytes) -> Rows:
    if len(payload) % dtype.itemsize:
        raise MalformedBlock(kind, f"{len(payload)} bytes, not a multiple of {dtype.itemsize}")
    rows = np.frombuffer(payload, dtype)
    if kind != BlockKind.EVENTS:  # a failed call may have requested any size
        _check_numbers(kind, rows)
    return rows


decode_processes = partial(_array, BlockKind.PROCESS, blocks.PROCESS)
decode_hooked = partial(_array, BlockKind.HOOKED, blocks.HOOKED)
decode_stops = partial(_array, BlockKind.STOPS, blocks.STOP)
decode_events = partial(_array, BlockKind.EVENTS, blocks.EVENT)


def decode_error(payload: bytes) -> tuple[int, str]:
    """Reason (enum Reason, maybe unknown) and text."""
    header = _struct(BlockKind.ERROR, blocks.ERROR, payload)
    return int(header["reason"]), decode_text(
        payload[blocks.ERROR.itemsize : blocks.ERROR.itemsize + int(header["text_bytes"])]
    )


def encode_error(reason: Reason, text: str) -> Block:
    data = text.encode()
    return Block(BlockKind.ERROR, _pad(struct.pack("<II", reason, len(data)) + data))


def decode_text(payload: bytes) -> str:
    return payload.rstrip(b"\0").decode("utf-8", "replace")


def encode_text(kind: BlockKind, text: str) -> Block:
    return Block(kind, _pad(text.encode()))


def decode_gap(payload: bytes) -> Gap:
    """`condition answer reason`."""
    condition, _, rest = decode_text(payload).partition(" ")
    answer, _, text = rest.partition(" ")
    try:
        return Gap(Condition(condition), Answer(answer), text)
    except ValueError:
        raise MalformedBlock(BlockKind.GAP, f"{condition[:40]} is {answer[:40]}") from None


def encode_gap(gap: Gap) -> Block:
    return encode_text(BlockKind.GAP, f"{gap.condition.value} {gap.answer.value} {gap.text}")


@dataclass(frozen=True, slots=True)
class TraceChunk:
    """Traces first_trace… of a recording: rows of TRACE_ROW, and the FRAME_ROWs of all of them, in order."""

    first_trace: int
    last: bool
    traces: Rows
    frames: Rows


def decode_traces(payload: bytes) -> TraceChunk:
    kind = BlockKind.TRACES
    header = _struct(kind, blocks.TRACES, payload)
    traces, at = _from_columns(
        kind, payload, blocks.TRACES.itemsize, blocks.TRACE_ROW, int(header["n_traces"])
    )
    frames, _ = _from_columns(kind, payload, at, blocks.FRAME_ROW, int(header["n_frames"]))
    if int(traces["n_frames"].sum(dtype=np.uint64)) != len(frames):
        raise MalformedBlock(kind, f"traces of {int(traces['n_frames'].sum())} frames, {len(frames)} frames")
    return TraceChunk(int(header["first_trace"]), bool(header["last"]), traces, frames)


def encode_traces(chunk: TraceChunk) -> Block:
    header = struct.pack("<IIII", chunk.first_trace, len(chunk.traces), len(chunk.frames), int(chunk.last))
    return Block(BlockKind.TRACES, header + _columns(chunk.traces) + _columns(chunk.frames))
