"""host/wire/calls.py against device/wire_calls.h, device/bpf/snoop/tables.h and docs/wire-protocol.md."""

import re

import numpy as np
import pytest

from memleak_android.host.wire import calls as wire
from tests.test_wire_document import DOCUMENT, ROOT, check, drawn

MIRRORS = {
    "ml_calls": wire.CALLS, "ml_call": wire.CALL, "ml_call_capture": wire.CAPTURE, "ml_call_totals": wire.TOTALS,
    "ml_call_statistics": wire.STATISTICS, "ml_call_bucket": wire.BUCKET, "ml_probe_result": wire.PROBE_RESULT,
}  # fmt: skip


def test_mirrors_are_what_the_header_says() -> None:
    enums = [
        ("ML_CALL_", wire.CallType), ("ML_PROBE_", wire.ProbeWay), ("ML_PROBE_", wire.ProbeKind),
        ("ML_SNOOP_", wire.CaptureKind), ("ML_SNOOP_", wire.Comparison),
    ]  # fmt: skip
    numbers = {f"{prefix}{one.name}": int(one) for prefix, enum in enums for one in enum}
    numbers |= {"ML_CALL_BUCKETS": wire.BUCKETS, "ML_CALL_RETURN": wire.RETURN}
    tables = (ROOT / "device/bpf/snoop/tables.h").read_text().replace('#include "wire_calls.h"', "")
    check(drawn(MIRRORS), numbers=numbers, behind=tables)


def test_every_input_line_is_described() -> None:
    source = (ROOT / "device" / "agent" / "snoop" / "config.c").read_text()
    keys = set(re.findall(r'strcmp\(key, "(\w+)"\)', source))
    described = DOCUMENT.read_text().split("## 11.")[1]
    assert {"at", "object", "rate"} < keys
    assert not {key for key in keys if f"`{key} " not in described and f"`{key}`" not in described}


def test_a_block_that_lies_about_its_length_is_refused() -> None:
    head = np.zeros(1, wire.CALLS)
    head["count"], head["data_bytes"] = 2, 8
    with pytest.raises(wire.BadCalls):
        wire.decode_calls(head.tobytes() + bytes(wire.CALL.itemsize))
    row = np.zeros(1, wire.STATISTICS)
    row["n_buckets"] = 1 << 30
    totals = np.zeros(1, wire.TOTALS)
    totals["count"] = 1
    with pytest.raises(wire.BadCalls):
        wire.decode_statistics(totals.tobytes() + row.tobytes())
    calls = wire.Calls(np.zeros(0, wire.CALL), bytes(12))
    with pytest.raises(wire.BadCalls):
        calls.captures(8, 1)
