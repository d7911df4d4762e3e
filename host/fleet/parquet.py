"""Tables as Parquet bytes and back, without Arrow's threads.

An Arrow thread may release a Python object while the interpreter exits. The thread is then unwound through C++ code that
forbids it, and the process aborts after its work is done.
"""

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq


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
