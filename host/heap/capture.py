"""The state built up from a stream of blocks, live or from a recording.

Evidence stays in the file (stacks can be gigabytes); the capture has the offset of each record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from memleak_android.host.heap.high_water import HighWater
from memleak_android.host.heap.key_history import KeyHistory, KeySnapshot, held_by_key
from memleak_android.host.profile.coverage import Reason
from memleak_android.host.stacks.file_identities import FileIdentity, parse_identity
from memleak_android.host.stacks.python_code import PythonFunctions
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import KEY_ROW, LIVE_ROW, SITE_ROW, Block, BlockKind, Rows
from memleak_android.host.wire.session import SessionInfo

EVIDENCE_REFERENCE = np.dtype(
    [
        ("sequence", "<u8"),
        ("key", "<u8"),
        ("timestamp_ns", "<u8"),
        ("block_offset", "<i8"),
        ("record", "<u4"),  # number of the record in its block
        ("pid", "<u4"),
    ]
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live table (LIVE_ROW) and the per-key counters (KEY_ROW) at one instant.

    is_whole is False when the stream ended inside it: then rows are missing.
    """

    number: int
    timestamp_ns: int
    live: Rows
    keys: Rows
    is_whole: bool

    def of(self, pids: Sequence[int]) -> Snapshot:
        """The part of it that belongs to these processes."""
        live, keys = (rows[np.isin(rows["pid"], pids)] for rows in (self.live, self.keys))
        return replace(self, live=live, keys=keys)


class _GrowingRows:
    """Chunks as one array, grown in place where the C library can, so that ten million blocks are not copied."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._rows: Rows = np.empty(0, dtype)
        self._length = 0

    def add(self, chunk: Rows) -> None:
        end = self._length + len(chunk)
        if end > len(self._rows):
            self._rows.resize(end + (end >> 3 if self._length else 0), refcheck=False)
        self._rows[self._length : end] = chunk
        self._length = end

    def copy(self) -> Rows:
        return self._rows[: self._length].copy()

    def take(self) -> Rows:
        """Returns the rows and becomes empty."""
        taken, length = self._rows, self._length
        self._rows, self._length = np.empty(0, taken.dtype), 0
        taken.resize(length, refcheck=False)
        return taken


class _Assembly:
    """Chunks of one snapshot."""

    def __init__(self, number: int, timestamp_ns: int) -> None:
        self.number, self.timestamp_ns = number, timestamp_ns
        self._rows = {BlockKind.LIVE: _GrowingRows(LIVE_ROW), BlockKind.KEYS: _GrowingRows(KEY_ROW)}
        self._ended: set[int] = set()

    def add(self, kind: int, chunk: payloads.Chunk) -> bool:
        """True when this chunk made the snapshot whole."""
        self._rows[BlockKind(kind)].add(chunk.rows)
        if chunk.last:
            self._ended.add(kind)
        return len(self._ended) == len(self._rows)

    def snapshot(self, is_whole: bool) -> Snapshot:
        tables = (self._rows[BlockKind.LIVE], self._rows[BlockKind.KEYS])
        live, keys = (rows.take() if is_whole else rows.copy() for rows in tables)
        return Snapshot(self.number, self.timestamp_ns, live, keys, is_whole)


@dataclass(slots=True)
class Capture:
    """Everything but the evidence's bytes. A malformed block is noted in `malformed` and skipped."""

    session: SessionInfo = field(default_factory=lambda: SessionInfo.decode({}))
    hello: np.void | None = None
    status: np.void | None = None
    end: np.void | None = None
    errors: list[tuple[int, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    gaps: list[Reason] = field(default_factory=list)  # the agent's, of what it could not measure
    maps: list[payloads.Maps] = field(default_factory=list)
    mappings: list[tuple[Rows, list[str]]] = field(default_factory=list)
    processes: list[Rows] = field(default_factory=list)
    hooked: list[Rows] = field(default_factory=list)  # modules whose slots were patched, in order of time
    stops: list[Rows] = field(default_factory=list)  # of threads of an attached process
    exit_stop: np.void | None = None  # EXIT_STOP of the command that is, or was, held at its end
    modules: list[dict[str, Any]] = field(default_factory=list)
    kernel_symbols: list[str] = field(default_factory=list)  # texts, for host/stacks/kernel_stacks.py
    python: PythonFunctions = field(default_factory=PythonFunctions)
    files: list[FileIdentity] = field(default_factory=list)  # of a device, of a session that was cut
    stacks: StackTable = field(default_factory=lambda: StackTable(keeps_sp=False))  # of a finished recording
    malformed: list[payloads.MalformedBlock] = field(default_factory=list)
    unknown_kinds: set[int] = field(default_factory=set)
    last_timestamp_ns: int = 0
    whole: Snapshot | None = None  # the last whole snapshot
    key_history: KeyHistory = field(default_factory=KeyHistory)  # the whole snapshots before it
    high_water: HighWater = field(default_factory=HighWater)
    is_whole_extra: bool = False  # the last whole snapshot was taken for the peak: growth is not judged by it
    is_finished: bool = False  # a finished recording: stacks are in `stacks`, not in evidence
    _sites: _GrowingRows = field(default_factory=lambda: _GrowingRows(SITE_ROW))
    _evidence: list[Rows] = field(default_factory=list)
    _maps_texts: dict[str, str] = field(default_factory=dict)  # each once
    _assembly: _Assembly | None = None
    _held_chunks: list[Rows] = field(default_factory=list)
    _peak_chunks: list[Rows] = field(default_factory=list)

    def add(self, block: Block, offset: int) -> None:
        """Adds a block. offset: of the block in the file that evidence will be read from; -1 = in no file."""
        try:
            if block.kind in _APPENDED:
                name, decode = _APPENDED[BlockKind(block.kind)]
                getattr(self, name).append(decode(block.payload))
            elif block.kind in _READERS:
                _READERS[BlockKind(block.kind)](self, block, offset)
            elif block.kind != BlockKind.EVENTS:
                self.unknown_kinds.add(block.kind)
        except payloads.MalformedBlock as error:
            self.malformed.append(error)

    @property
    def snapshot(self) -> Snapshot | None:
        """The last whole snapshot; before there is one, the received part of the first."""
        snapshot = self.whole
        if snapshot is None and self._assembly is not None:
            snapshot = self._assembly.snapshot(is_whole=False)
        return snapshot if snapshot is None or self.only_pids is None else snapshot.of(self.only_pids)

    @property
    def only_pids(self) -> tuple[int, ...] | None:
        """The processes that the session is about, where it had to measure more; None = all."""
        return self.session.target.only_pids

    @property
    def arch_number(self) -> int:
        """Of HELLO; 0 = unknown."""
        return 0 if self.hello is None else int(self.hello["arch"])

    def evidence(self) -> Rows:
        """References (EVIDENCE_REFERENCE) to all evidence, in order of arrival."""
        if len(self._evidence) != 1:
            self._evidence = [np.concatenate([np.empty(0, EVIDENCE_REFERENCE), *self._evidence])]
        return self._evidence[0]

    def frozen(self) -> Capture:
        """A copy for another thread. Tables are shared, because they are never changed."""
        evidence, made = self.evidence(), copy(self)
        for name in ("malformed", "maps", *(name for name, _ in _APPENDED.values())):
            setattr(made, name, list(getattr(self, name)))
        made.key_history, made.high_water = copy(self.key_history), copy(self.high_water)
        made._evidence = [evidence]
        return made

    def take_sites(self) -> Rows:
        """The stack of each block (SITE_ROW) in a finished recording; the capture drops them."""
        return self._sites.take()

    def _add_hello(self, block: Block, offset: int) -> None:
        self.hello = payloads.decode_hello(block.payload)
        self.last_timestamp_ns = max(self.last_timestamp_ns, int(self.hello["monotonic_ns"]))

    def _add_evidence(self, block: Block, offset: int) -> None:
        rows = payloads.decode_evidence(block.payload).rows
        if offset < 0:
            return
        references = np.empty(len(rows), EVIDENCE_REFERENCE)
        for name in ("sequence", "key", "timestamp_ns", "pid"):
            references[name] = rows[name]
        references["block_offset"] = offset
        references["record"] = np.arange(len(rows))
        self._evidence.append(references)

    def _add_chunk(self, block: Block, offset: int) -> None:
        chunk = payloads.decode_chunk(block)
        self.last_timestamp_ns = max(self.last_timestamp_ns, chunk.timestamp_ns)
        if self._assembly is None or chunk.snapshot != self._assembly.number:
            self._assembly = _Assembly(chunk.snapshot, chunk.timestamp_ns)
        if self._assembly.add(block.kind, chunk):
            self._keep_sums_of_last()
            self.whole = self._assembly.snapshot(is_whole=True)
            self._assembly = None
            self.high_water.add_snapshot(self.whole.timestamp_ns, self.whole.live)

    def _keep_sums_of_last(self) -> None:
        """Keeps the sums of the last whole snapshot before the next one replaces it."""
        if self.whole is None:
            return
        held = KeySnapshot(self.whole.timestamp_ns, held_by_key(self.whole.live))
        if not self.is_whole_extra:
            self.key_history.add(held)
        self.high_water.replace_snapshot(held, self.whole.live)
        self.is_whole_extra = False

    def _add_sums(self, block: Block, offset: int) -> None:
        """HELD or PEAK: sums of an earlier snapshot, or of the peak."""
        is_peak, chunk = block.kind == BlockKind.PEAK, payloads.decode_chunk(block)
        chunks = self._peak_chunks if is_peak else self._held_chunks
        chunks.append(chunk.rows)
        if chunk.last:
            keep = self.high_water.set_recorded if is_peak else self.key_history.add
            keep(KeySnapshot(chunk.timestamp_ns, np.concatenate(chunks)))
            chunks.clear()

    def _add_high_water(self, block: Block, offset: int) -> None:
        self.high_water.add(*payloads.decode_high_water(block.payload))

    def _add_maps(self, block: Block, offset: int) -> None:
        maps = payloads.decode_maps(block.payload)
        # A long session sends them often, rarely changed, and not in order of time: each thread sends its own.
        text = self._maps_texts.setdefault(maps.text, maps.text)
        self.maps.append(payloads.Maps(maps.timestamp_ns, maps.pid, text))

    def _add_exit_stop(self, block: Block, offset: int) -> None:
        self.exit_stop = payloads.decode_exit_stop(block.payload)

    def _add_status(self, block: Block, offset: int) -> None:
        self.status = payloads.decode_status(block.payload)
        self.high_water.add_level(int(self.status["alloc_bytes"]) - int(self.status["free_bytes"]))
        self.last_timestamp_ns = max(self.last_timestamp_ns, int(self.status["timestamp_ns"]))

    def _add_end(self, block: Block, offset: int) -> None:
        self.end = payloads.decode_end(block.payload)
        self.last_timestamp_ns = max(self.last_timestamp_ns, int(self.end["timestamp_ns"]))

    def _add_session(self, block: Block, offset: int) -> None:
        self.session = SessionInfo.decode(_decode_json(block, dict))

    def _add_modules(self, block: Block, offset: int) -> None:
        modules = _decode_json(block, list)
        self.modules += [module for module in modules if isinstance(module, dict)]

    def _add_files(self, block: Block, offset: int) -> None:
        self.files += [each for each in map(parse_identity, _decode_json(block, list)) if each is not None]

    def _add_traces(self, block: Block, offset: int) -> None:
        chunk = payloads.decode_traces(block.payload)
        self.stacks.append(chunk.traces, chunk.frames)
        self.is_finished = True


def _decode_json(block: Block, expected: type[Any]) -> Any:
    kind = BlockKind(block.kind)
    try:
        value = json.loads(payloads.decode_text(block.payload))
    except (ValueError, RecursionError) as error:
        raise payloads.MalformedBlock(kind, f"not JSON: {error}") from None
    if not isinstance(value, expected):
        raise payloads.MalformedBlock(kind, f"JSON {type(value).__name__}, not {expected.__name__}")
    return value


_APPENDED: dict[BlockKind, tuple[str, Callable[[bytes], Any]]] = {
    BlockKind.MAPPINGS: ("mappings", payloads.decode_mappings),
    BlockKind.PROCESS: ("processes", payloads.decode_processes),
    BlockKind.HOOKED: ("hooked", payloads.decode_hooked),
    BlockKind.STOPS: ("stops", payloads.decode_stops),
    BlockKind.LOG: ("remarks", payloads.decode_text),
    BlockKind.GAP: ("gaps", payloads.decode_gap),
    BlockKind.KERNEL_SYMBOLS: ("kernel_symbols", payloads.decode_text),
    BlockKind.ERROR: ("errors", payloads.decode_error),
}
_READERS: dict[BlockKind, Callable[[Capture, Block, int], None]] = {
    BlockKind.HELLO: Capture._add_hello,
    BlockKind.EVIDENCE: Capture._add_evidence,
    BlockKind.LIVE: Capture._add_chunk,
    BlockKind.KEYS: Capture._add_chunk,
    BlockKind.MAPS: Capture._add_maps,
    BlockKind.EXIT_STOP: Capture._add_exit_stop,
    BlockKind.PYTHON_CODE: lambda self, block, _: self.python.add(payloads.decode_python_code(block.payload)),
    BlockKind.STATUS: Capture._add_status,
    BlockKind.END: Capture._add_end,
    BlockKind.SESSION: Capture._add_session,
    BlockKind.MODULES: Capture._add_modules,
    BlockKind.FILES: Capture._add_files,
    BlockKind.TRACES: Capture._add_traces,
    BlockKind.SITES: lambda self, block, _: self._sites.add(payloads.decode_chunk(block).rows),
    BlockKind.HELD: Capture._add_sums,
    BlockKind.PEAK: Capture._add_sums,
    BlockKind.HIGH_WATER: Capture._add_high_water,
}
