"""The blocks of a finished recording: frames, counters and modules; stack bytes only on request."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import numpy as np

from memleak_android.host.analysis.coverage import recorded_coverage
from memleak_android.host.analysis.process_sums import process_ends, process_names
from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.keys import key_identity
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.stacks.perf_maps import JitModule
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import (
    NO_TRACE,
    SITE_LEAK_SHIFT,
    SITE_ROW,
    Block,
    BlockKind,
    Reason,
    Rows,
    SiteFlag,
)
from memleak_android.host.wire.payloads import Chunk
from memleak_android.host.wire.python_frames import encode_code
from memleak_android.host.wire.session import coverage_field

_ROWS_PER_CHUNK = 1 << 17  # of 56 bytes: 7 MiB of at most 16
STACK_KINDS = frozenset((BlockKind.EVIDENCE, BlockKind.MAPS, BlockKind.MAPPINGS, BlockKind.PROCESS))


def recording_blocks(capture: Capture, survivors: Survivors, raw: Iterable[Block] = ()) -> Iterator[Block]:
    """The blocks of a finished recording. raw: blocks of the session to keep unchanged."""
    if capture.hello is not None:
        yield Block(BlockKind.HELLO, capture.hello.tobytes())
    session = {
        **capture.session.fields,
        "coverage": coverage_field(recorded_coverage(capture)),
        "process_names": process_names(capture),
        "process_ends": process_ends(capture),
        "highest_level": capture.high_water.level,
    }
    if capture.high_water.bound is not None:
        session["peak_bound"] = capture.high_water.bound
    if survivors.fp_agreement is not None:
        session["fp_agreement"] = asdict(survivors.fp_agreement)
    yield payloads.encode_text(BlockKind.SESSION, json.dumps(session))
    yield from map(payloads.encode_gap, capture.gaps)
    for remark in capture.remarks:
        yield payloads.encode_text(BlockKind.LOG, remark)
    for rows in capture.stops:
        yield Block(BlockKind.STOPS, rows.tobytes())
    for reason, text in capture.errors:
        if reason in set(Reason):
            yield payloads.encode_error(Reason(reason), text)
    for text in capture.kernel_symbols:
        yield payloads.encode_text(BlockKind.KERNEL_SYMBOLS, text)
    for code in capture.python.recorded():
        yield Block(BlockKind.PYTHON_CODE, encode_code(code))
    yield from raw
    modules = [
        {"path": file.path, "build_id": file.build_id}
        | ({"functions": file.functions} if isinstance(file, JitModule) else {})
        for file in survivors.files
    ]
    yield payloads.encode_text(BlockKind.MODULES, json.dumps(modules))
    yield from (payloads.encode_traces(chunk) for chunk in survivors.stacks.chunks())
    if survivors.snapshot.is_whole:
        yield from _held_blocks(capture, survivors)
        if (peak := capture.high_water.at) is not None:
            yield from _chunks(BlockKind.PEAK, 0, peak.timestamp_ns, peak.rows)
        number, timestamp_ns = survivors.snapshot.number, survivors.snapshot.timestamp_ns
        yield from _chunks(BlockKind.KEYS, number, timestamp_ns, survivors.snapshot.keys)
        yield from _chunks(BlockKind.LIVE, number, timestamp_ns, survivors.snapshot.live)
        yield from _chunks(BlockKind.SITES, number, timestamp_ns, _site_rows(survivors))
    if capture.status is not None:
        yield Block(BlockKind.STATUS, capture.status.tobytes())
    if capture.end is not None:
        yield Block(BlockKind.END, capture.end.tobytes())


def _held_blocks(capture: Capture, survivors: Survivors) -> Iterator[Block]:
    """Earlier snapshots of the keys that hold something at the end or have a stack: what exit handlers freed has grown, too."""
    tables = survivors.snapshot.live, survivors.stacks.traces
    known = np.unique(np.concatenate([key_identity(each) for each in tables]))
    for number, past in enumerate(capture.key_history.instants):
        rows = past.rows[np.isin(key_identity(past.rows), known)]
        yield from _chunks(BlockKind.HELD, number, past.timestamp_ns, rows)


def _chunks(kind: BlockKind, number: int, timestamp_ns: int, rows: Rows) -> Iterator[Block]:
    """At least one chunk, so that an empty table differs from a missing one."""
    for first in range(0, max(len(rows), 1), _ROWS_PER_CHUNK):
        end = first + _ROWS_PER_CHUNK
        yield payloads.encode_chunk(kind, Chunk(number, timestamp_ns, end >= len(rows), rows[first:end]))


def _site_rows(survivors: Survivors) -> Rows:
    rows = np.empty(len(survivors.trace), SITE_ROW)
    rows["sequence"] = survivors.snapshot.live["sequence"]
    rows["trace"] = np.where(survivors.trace == attribution.UNATTRIBUTED, NO_TRACE, survivors.trace)
    rows["flags"] = np.where(survivors.is_approximate, int(SiteFlag.APPROXIMATE), 0)
    if survivors.leak_kinds is not None:
        rows["flags"] |= (survivors.leak_kinds + 1).astype(np.uint32) << np.uint32(SITE_LEAK_SHIFT)
    return rows
