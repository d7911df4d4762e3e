"""The Parquet dataset's columns. docs/use/fleet.md describes them. A change needs a new FORMAT."""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FORMAT = 3

_TEXT, _I64, _F64, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _columns(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """groups: a type, and the names of the columns that have it."""
    return [(name, kind) for kind, names in groups for name in names.split()]


FRAME = pa.struct(
    _columns(
        (_TEXT, "module build_id"),
        (pa.uint64(), "vaddr"),
        (_TEXT, "function"),
        (_I64, "offset"),
        (_TEXT, "file"),
        (_I64, "line"),
        (_BOOL, "inlined"),
    )
)

RECORDINGS = pa.schema(
    _columns(
        (_TEXT, "recording source state reason"),  # recording: digest of its bytes
        (_I64, "bytes"),
        (pa.timestamp("us", "UTC"), "taken_at"),
        (_F64, "duration_s"),
        (_TEXT, "package command version"),
        (_I64, "version_code"),
        (_TEXT, "model release"),
        (pa.int32(), "api_level"),
        (_TEXT, "abi serial tracer"),
        (_I64, "sample_bytes"),
        (_TEXT, "answer"),  # an AnswerState
        (_I64, "inuse_space inuse_objects unattributed_space unattributed_objects stacks complete"),
        (pa.map_(_TEXT, _I64), "lost"),  # by cause
        (pa.list_(_TEXT), "build_ids"),
        (pa.map_(_TEXT, _TEXT), "labels"),
        (pa.list_(_TEXT), "notes"),
    )
)

SITES = pa.schema(
    _columns(
        (_TEXT, "recording site kind end"),  # site: profile/site_id.py
        (_I64, "inuse_space inuse_objects alloc_space alloc_objects stderr_space"),
        (_F64, "oldest_s"),
        (_BOOL, "approximate"),
        (_TEXT, "trend"),
        (_F64, "growth_bytes_per_s growth_low growth_high"),
        (_TEXT, "function module build_id"),  # of the responsible frame
        (pa.list_(FRAME), "frames"),
    )
)


# Without Arrow's threads: one may release a Python object while the interpreter exits. The thread is then unwound through
# C++ code that forbids it, and the process aborts after its work is done.


def to_parquet(table: pa.Table) -> bytes:
    """A table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def from_parquet(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a Parquet file. Raises Arrow's errors.

    columns: None for all.
    """
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
        return file.read(columns=columns, use_threads=False)
