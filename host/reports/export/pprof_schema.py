"""pprof's protocol buffer as data: messages, field numbers and types of profile.proto (google/pprof, proto/).

Made into classes by the protobuf library when they are first asked for; no generated code to keep in step with the
library's version. tests/host/reports/test_pprof.py compares with the public .proto as protoc reads it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from memleak_android.host.reports.export.protobuf_schema import Messages, message_class

PACKAGE = "perftools.profiles"

MESSAGES: Messages = {
    "Profile": {
        "sample_type": (1, "[ValueType]"),
        "sample": (2, "[Sample]"),
        "mapping": (3, "[Mapping]"),
        "location": (4, "[Location]"),
        "function": (5, "[Function]"),
        "string_table": (6, "[string]"),
        "drop_frames": (7, "int64"),
        "keep_frames": (8, "int64"),
        "time_nanos": (9, "int64"),
        "duration_nanos": (10, "int64"),
        "period_type": (11, "ValueType"),
        "period": (12, "int64"),
        "comment": (13, "[int64]"),
        "default_sample_type": (14, "int64"),
    },
    "ValueType": {"type": (1, "int64"), "unit": (2, "int64")},
    "Sample": {"location_id": (1, "[uint64]"), "value": (2, "[int64]"), "label": (3, "[Label]")},
    "Label": {"key": (1, "int64"), "str": (2, "int64"), "num": (3, "int64"), "num_unit": (4, "int64")},
    "Mapping": {
        "id": (1, "uint64"),
        "memory_start": (2, "uint64"),
        "memory_limit": (3, "uint64"),
        "file_offset": (4, "uint64"),
        "filename": (5, "int64"),
        "build_id": (6, "int64"),
        "has_functions": (7, "bool"),
        "has_filenames": (8, "bool"),
        "has_line_numbers": (9, "bool"),
        "has_inline_frames": (10, "bool"),
    },
    "Location": {
        "id": (1, "uint64"),
        "mapping_id": (2, "uint64"),
        "address": (3, "uint64"),
        "line": (4, "[Line]"),
        "is_folded": (5, "bool"),
    },
    "Line": {"function_id": (1, "uint64"), "line": (2, "int64")},
    "Function": {
        "id": (1, "uint64"),
        "name": (2, "int64"),
        "system_name": (3, "int64"),
        "filename": (4, "int64"),
        "start_line": (5, "int64"),
    },
}


@lru_cache(maxsize=1)
def profile_class() -> Any:
    """The class of the message Profile."""
    return message_class(PACKAGE, MESSAGES, "Profile")
