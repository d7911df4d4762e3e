"""A table as the bytes of a Parquet file, and back, by this thread alone.

Arrow's own threads drop Python's objects (a file, a buffer) whenever they are done with them. One that does it while
the interpreter ends is unwound by force out of C++ that may not be: the process aborts after it has done its work.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq


def to_parquet(table: pa.Table) -> bytes:
    """A whole file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def from_parquet(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """columns: None for all. Raises what Arrow raises of bytes that are no such file."""
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
        return file.read(columns=columns, use_threads=False)
