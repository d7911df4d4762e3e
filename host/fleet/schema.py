"""The Parquet dataset's columns. docs/use/fleet.md describes them. A change needs a new FORMAT."""

from __future__ import annotations

import pyarrow as pa

FORMAT = 2

FRAME = pa.struct(
    [
        ("module", pa.string()),
        ("build_id", pa.string()),
        ("vaddr", pa.uint64()),
        ("function", pa.string()),
        ("offset", pa.int64()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("inlined", pa.bool_()),
    ]
)

RECORDINGS = pa.schema(
    [
        ("recording", pa.string()),  # digest of its bytes
        ("source", pa.string()),
        ("state", pa.string()),
        ("reason", pa.string()),
        ("bytes", pa.int64()),
        ("taken_at", pa.timestamp("us", "UTC")),
        ("duration_s", pa.float64()),
        ("package", pa.string()),
        ("command", pa.string()),
        ("version", pa.string()),
        ("version_code", pa.int64()),
        ("model", pa.string()),
        ("release", pa.string()),
        ("api_level", pa.int32()),
        ("abi", pa.string()),
        ("serial", pa.string()),
        ("tracer", pa.string()),
        ("sample_bytes", pa.int64()),
        ("verdict", pa.string()),
        ("inuse_space", pa.int64()),
        ("inuse_objects", pa.int64()),
        ("unattributed_space", pa.int64()),
        ("unattributed_objects", pa.int64()),
        ("stacks", pa.int64()),
        ("complete", pa.int64()),
        ("lost", pa.map_(pa.string(), pa.int64())),  # by cause
        ("build_ids", pa.list_(pa.string())),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("notes", pa.list_(pa.string())),
    ]
)

SITES = pa.schema(
    [
        ("recording", pa.string()),
        ("site", pa.string()),  # profile/site_id.py
        ("kind", pa.string()),
        ("end", pa.string()),
        ("inuse_space", pa.int64()),
        ("inuse_objects", pa.int64()),
        ("alloc_space", pa.int64()),
        ("alloc_objects", pa.int64()),
        ("stderr_space", pa.int64()),
        ("oldest_s", pa.float64()),
        ("approximate", pa.bool_()),
        ("trend", pa.string()),
        ("growth_bytes_per_s", pa.float64()),
        ("growth_low", pa.float64()),
        ("growth_high", pa.float64()),
        ("function", pa.string()),  # of the responsible frame
        ("module", pa.string()),
        ("build_id", pa.string()),
        ("frames", pa.list_(FRAME)),
    ]
)
