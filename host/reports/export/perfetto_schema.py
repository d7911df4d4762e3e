"""The part of Perfetto's trace that heap profiles need: messages, numbers and types of the public .proto files
(perfetto/trace/trace_packet.proto, profiling/profile_packet.proto, profiling/profile_common.proto,
interned_data/interned_data.proto)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from memleak_android.host.reports.export.protobuf_schema import Messages, message_class

PACKAGE = "memleak_android.perfetto"

MESSAGES: Messages = {
    "Trace": {"packet": (1, "[TracePacket]")},
    "TracePacket": {
        "timestamp": (8, "uint64"),
        "trusted_packet_sequence_id": (10, "uint32"),
        "interned_data": (12, "InternedData"),
        "sequence_flags": (13, "uint32"),
        "profile_packet": (37, "ProfilePacket"),
    },
    "InternedData": {
        "function_names": (5, "[InternedString]"),
        "frames": (6, "[Frame]"),
        "callstacks": (7, "[Callstack]"),
        "build_ids": (16, "[InternedString]"),
        "mapping_paths": (17, "[InternedString]"),
        "source_paths": (18, "[InternedString]"),
        "mappings": (19, "[Mapping]"),
    },
    "InternedString": {"iid": (1, "uint64"), "str": (2, "bytes")},
    "Frame": {
        "iid": (1, "uint64"),
        "function_name_id": (2, "uint64"),
        "mapping_id": (3, "uint64"),
        "rel_pc": (4, "uint64"),
        "source_path_iid": (5, "uint64"),
        "line_number": (6, "uint32"),
    },
    "Mapping": {
        "iid": (1, "uint64"),
        "build_id": (2, "uint64"),
        "start": (4, "uint64"),
        "path_string_ids": (7, "[uint64]"),
    },
    "Callstack": {"iid": (1, "uint64"), "frame_ids": (2, "[uint64]")},
    "ProfilePacket": {
        "process_dumps": (5, "[ProcessHeapSamples]"),
        "continued": (6, "bool"),
        "index": (7, "uint64"),
    },
    "ProcessHeapSamples": {
        "pid": (1, "uint64"),
        "samples": (2, "[HeapSample]"),
        "buffer_overran": (7, "bool"),
        "timestamp": (9, "uint64"),
        "heap_name": (11, "string"),
        "sampling_interval_bytes": (12, "uint64"),
    },
    "HeapSample": {
        "callstack_id": (1, "uint64"),
        "self_allocated": (2, "uint64"),
        "self_freed": (3, "uint64"),
        "alloc_count": (5, "uint64"),
        "free_count": (6, "uint64"),
    },
}


@lru_cache(maxsize=1)
def trace_class() -> Any:
    """The class of the message Trace."""
    return message_class(PACKAGE, MESSAGES, "Trace")
