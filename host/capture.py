"""What a stream of blocks has told so far: the state that a session and a recording are read into.

Evidence itself stays in the file (stacks can be gigabytes); here is only where each record lies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from memleak_android.host import payloads
from memleak_android.host.wire import KEY_ROW, LIVE_ROW, SITE_ROW, Block, BlockKind, Rows

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


class _Assembly:
    """Chunks of one snapshot."""

    def __init__(self, number: int, timestamp_ns: int) -> None:
        self.number, self.timestamp_ns = number, timestamp_ns
        self._chunks: dict[int, list[Rows]] = {BlockKind.LIVE: [], BlockKind.KEYS: []}
        self._ended: set[int] = set()

    def add(self, kind: int, chunk: payloads.Chunk) -> bool:
        """True when this chunk made the snapshot whole."""
        self._chunks[kind].append(chunk.rows)
        if chunk.last:
            self._ended.add(kind)
        return len(self._ended) == len(self._chunks)

    def snapshot(self, is_whole: bool) -> Snapshot:
        live, keys = self._chunks[BlockKind.LIVE], self._chunks[BlockKind.KEYS]
        return Snapshot(
            self.number,
            self.timestamp_ns,
            np.concatenate([np.empty(0, LIVE_ROW), *live]),
            np.concatenate([np.empty(0, KEY_ROW), *keys]),
            is_whole,
        )


@dataclass(slots=True)
class Capture:
    """Everything but the evidence's bytes. A malformed block is remembered in `malformed` and passed over."""

    session: dict[str, Any] = field(default_factory=dict)
    hello: np.void | None = None
    status: np.void | None = None
    end: np.void | None = None
    errors: list[tuple[int, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    maps: list[payloads.Maps] = field(default_factory=list)
    mappings: list[tuple[Rows, list[str]]] = field(default_factory=list)
    processes: list[Rows] = field(default_factory=list)
    modules: list[dict[str, Any]] = field(default_factory=list)
    traces: list[payloads.TraceChunk] = field(default_factory=list)
    sites: Rows = field(default_factory=lambda: np.empty(0, SITE_ROW))
    malformed: list[payloads.MalformedBlock] = field(default_factory=list)
    unknown_kinds: set[int] = field(default_factory=set)
    last_timestamp_ns: int = 0
    whole: Snapshot | None = None  # the last whole snapshot
    is_finished: bool = False  # a finished recording: stacks are in `traces`, not in evidence
    _evidence: list[Rows] = field(default_factory=list)
    _maps_texts: dict[str, str] = field(default_factory=dict)  # each once
    _assembly: _Assembly | None = None

    def add(self, block: Block, offset: int) -> None:
        """Takes a block that begins at `offset` in the file that evidence will be read from (-1: in none)."""
        read = _READERS.get(block.kind)
        if read is None:
            self.unknown_kinds.add(block.kind)
            return
        try:
            read(self, block, offset)
        except payloads.MalformedBlock as error:
            self.malformed.append(error)

    @property
    def snapshot(self) -> Snapshot | None:
        """The last whole snapshot; where there is none yet, what has arrived of the first."""
        snapshot = self.whole
        if snapshot is None and self._assembly is not None:
            snapshot = self._assembly.snapshot(is_whole=False)
        return snapshot if snapshot is None or self.only_pids is None else snapshot.of(self.only_pids)

    @property
    def only_pids(self) -> tuple[int, ...] | None:
        """The processes that the session was for, where it had to look at more of them; None = all that it saw."""
        told = self.session.get("only_pids")
        return tuple(pid for pid in told if isinstance(pid, int)) if isinstance(told, list) else None

    def evidence(self) -> Rows:
        """References (EVIDENCE_REFERENCE) to all evidence, in order of arrival."""
        if len(self._evidence) != 1:
            self._evidence = [np.concatenate([np.empty(0, EVIDENCE_REFERENCE), *self._evidence])]
        return self._evidence[0]

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
            self.whole = self._assembly.snapshot(is_whole=True)
            self._assembly = None

    def _add_sites(self, block: Block, offset: int) -> None:
        self.sites = np.concatenate([self.sites, payloads.decode_chunk(block).rows])

    def _add_maps(self, block: Block, offset: int) -> None:
        maps = payloads.decode_maps(block.payload)
        # Read again and again, in a long session, but rarely changed. Not in order of time: each thread sends its own.
        text = self._maps_texts.setdefault(maps.text, maps.text)
        self.maps.append(payloads.Maps(maps.timestamp_ns, maps.pid, text))

    def _add_mappings(self, block: Block, offset: int) -> None:
        rows, paths = payloads.decode_mappings(block.payload)
        self.mappings.append((rows, paths))

    def _add_processes(self, block: Block, offset: int) -> None:
        rows = payloads.decode_processes(block.payload)
        self.processes.append(rows)

    def _add_status(self, block: Block, offset: int) -> None:
        self.status = payloads.decode_status(block.payload)
        self.last_timestamp_ns = max(self.last_timestamp_ns, int(self.status["timestamp_ns"]))

    def _add_remark(self, block: Block, offset: int) -> None:
        self.remarks.append(payloads.decode_text(block.payload))

    def _add_error(self, block: Block, offset: int) -> None:
        self.errors.append(payloads.decode_error(block.payload))

    def _add_end(self, block: Block, offset: int) -> None:
        self.end = payloads.decode_end(block.payload)
        self.last_timestamp_ns = max(self.last_timestamp_ns, int(self.end["timestamp_ns"]))

    def _add_session(self, block: Block, offset: int) -> None:
        self.session = _decode_json(block, dict)

    def _add_modules(self, block: Block, offset: int) -> None:
        modules = _decode_json(block, list)
        self.modules += [module for module in modules if isinstance(module, dict)]
        self.is_finished = True

    def _add_traces(self, block: Block, offset: int) -> None:
        self.traces.append(payloads.decode_traces(block.payload))

    def _ignore(self, block: Block, offset: int) -> None:
        pass


def _decode_json(block: Block, expected: type[Any]) -> Any:
    kind = BlockKind(block.kind)
    try:
        value = json.loads(payloads.decode_text(block.payload))
    except (ValueError, RecursionError) as error:
        raise payloads.MalformedBlock(kind, f"not JSON: {error}") from None
    if not isinstance(value, expected):
        raise payloads.MalformedBlock(kind, f"JSON {type(value).__name__}, not {expected.__name__}")
    return value


_READERS: dict[int, Callable[[Capture, Block, int], None]] = {
    BlockKind.HELLO: Capture._add_hello,
    BlockKind.EVIDENCE: Capture._add_evidence,
    BlockKind.LIVE: Capture._add_chunk,
    BlockKind.KEYS: Capture._add_chunk,
    BlockKind.MAPS: Capture._add_maps,
    BlockKind.MAPPINGS: Capture._add_mappings,
    BlockKind.PROCESS: Capture._add_processes,
    BlockKind.EVENTS: Capture._ignore,
    BlockKind.STATUS: Capture._add_status,
    BlockKind.LOG: Capture._add_remark,
    BlockKind.ERROR: Capture._add_error,
    BlockKind.END: Capture._add_end,
    BlockKind.SESSION: Capture._add_session,
    BlockKind.MODULES: Capture._add_modules,
    BlockKind.TRACES: Capture._add_traces,
    BlockKind.SITES: Capture._add_sites,
}
