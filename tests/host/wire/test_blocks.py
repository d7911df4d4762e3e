"""Both ends of the wire: the headers as a C compiler sees them, blocks.py and calls.py as NumPy does."""

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.host.wire import blocks
from memleak_android.host.wire import calls as wire
from memleak_android.host.wire.blocks import Block, BlockParser, BrokenStream, encode_block, read_blocks
from tests.support.builders import blocks as builders
from tests.test_wire_document import DOCUMENT, HEADER, ROOT, check, drawn

TEXT = "".join(
    HEADER.with_name(name).read_text()
    for name in ("wire.h", "wire_hooks.h", "wire_python.h", "wire_recording.h")
)
ENUMS = {
    "ML_BLOCK_": blocks.BlockKind, "ML_ARCH_": blocks.ArchNumber, "ML_COLLECTOR_": blocks.Collector,
    "ML_FN_": blocks.Function, "ML_EVIDENCE_": blocks.EvidenceFlag, "ML_HOOKED_": blocks.HookedFlag,
    "ML_KEY_": blocks.KeyFlag, "ML_LOST_": blocks.Lost, "ML_PROCESS_": blocks.ProcessEvent,
    "ML_REASON_": blocks.Reason, "ML_SITE_": blocks.SiteFlag, "ML_STOP_": blocks.StopMoment,
    "ML_STOPPED_": blocks.Stopped, "ML_PYTHON_": blocks.PythonLines,
}  # fmt: skip
CONSTANTS = (
    "WIRE_VERSION BLOCK_MAGIC BLOCK_PAYLOAD_MAX FIXUPS STACK_BYTES_MAX ABOVE_BYTES_MAX ABOVE_WORDS_MAX"
    " LOST_MAX NO_TRACE NO_MODULE PYTHON_FRAMES_MAX"
)


def test_every_struct_and_field_of_the_header_is_mirrored() -> None:
    """The mirror of ml_live is LIVE: with its fields in order, which lie where the header has them."""
    defined = {
        match[1]: re.findall(r"(\w+)(?:\[\w+\])?;", re.sub(r"/\*.*?\*/", "", match[2], flags=re.DOTALL))
        for match in re.finditer(r"^struct (ml_\w+) \{(.*?)^\};", TEXT, re.DOTALL | re.MULTILINE)
    }
    mirrors = {name: getattr(blocks, name.removeprefix("ml_").upper()) for name in defined}
    assert len(defined) >= 24
    assert defined == {name: list(dtype.names) for name, dtype in mirrors.items()}
    assert all(dtype[field].byteorder != ">" for dtype in mirrors.values() for field in dtype.names)
    check(drawn(mirrors))


def test_numbers_of_the_header() -> None:
    numbers = {f"{prefix}{one.name}": one.value for prefix, enum in ENUMS.items() for one in enum}
    in_header = set(re.findall(r"^\s+(ML_[A-Z0-9_]+) = ", TEXT, re.MULTILINE))
    assert in_header - numbers.keys() == {"ML_FN_MAX", "ML_LOST_MAX"}
    check(numbers=numbers | {f"ML_{name}": getattr(blocks, name) for name in CONSTANTS.split()})


def test_literal_bytes_of_a_block() -> None:
    # the checksum by `printf "remark\\0\\0" | gzip | tail -c8 | head -c4`
    block = Block(blocks.BlockKind.LOG, b"remark\0\0")
    assert encode_block(block) == bytes.fromhex("4d4c4b31 0a00 0200 08000000 692455c7") + b"remark\0\0"


def test_blocks_read_back_whatever_the_pieces() -> None:
    blocks = [Block(10, b""), Block(10, bytes(8)), Block(99, bytes(range(256)) * 100)]
    data = b"".join(encode_block(block) for block in blocks)
    for piece_bytes in (1, 7, 16, 1 << 20):
        assert list(read_blocks(io.BytesIO(data), piece_bytes=piece_bytes)) == blocks


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: d[:-1], "cut after 39 bytes"),
        (lambda d: d[:50], "cut after 26 bytes"),
        (lambda d: d[:24] + b"\xff" + d[25:], "magic is 0x314b4cff, not 0x314b4c4d"),
        (lambda d: d[:30] + b"\x01" + d[31:], "wire version 1, not 2"),
        (lambda d: d[:32] + b"\xff\xff\xff\xff" + d[36:], "payload of 4294967295 bytes"),
        (lambda d: d[:32] + b"\x09\x00\x00\x00" + d[36:], "payload of 9 bytes"),
        (lambda d: d[:45] + b"\xff" + d[46:], "checksum does not match"),
    ],
)
def test_damaged_stream_ends_at_the_damage(damage: object, reason: str) -> None:
    data = encode_block(Block(10, bytes(8))) + encode_block(Block(10, bytes(24)))
    blocks: list[Block] = []
    with pytest.raises(BrokenStream) as caught:
        blocks.extend(read_blocks(io.BytesIO(damage(data))))  # type: ignore[operator]
    assert blocks == [Block(10, bytes(8))]
    assert caught.value.offset == 24
    assert reason in caught.value.reason


def test_huge_payload_is_refused_before_it_is_waited_for() -> None:
    header = (
        blocks.encode_block(Block(10, b""))[:8]
        + (blocks.BLOCK_PAYLOAD_MAX + 8).to_bytes(4, "little")
        + bytes(4)
    )
    with pytest.raises(BrokenStream):
        list(BlockParser().feed(header))


@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_typed_error_or_nothing(data: bytes) -> None:
    valid = encode_block(builders.hello())
    try:
        first, *_ = read_blocks(io.BytesIO(valid + data))
        assert first.kind == blocks.BlockKind.HELLO
    except BrokenStream as error:
        assert error.offset >= len(valid)


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
