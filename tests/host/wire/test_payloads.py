"""Payloads to arrays and groups of fields: the odd shapes, and what a hostile writer may send."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memleak_android.host.stacks.samples import read_samples
from memleak_android.host.wire import blocks, frame_chains, payloads, stack_tail
from memleak_android.host.wire.blocks import EVIDENCE, LIVE_ROW, Block, BlockKind, EvidenceFlag, Function
from memleak_android.host.wire.payloads import MalformedBlock
from memleak_android.host.wire.session import SessionInfo
from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd
from tests.support.builders import blocks as builders
from tests.support.builders.analysed import read
from tests.support.builders.blocks import evidence, evidence_record, hello, write_recording


def test_evidence_of_different_lengths_and_padding() -> None:
    block = builders.evidence(
        builders.evidence_record(sequence=5, pc=0x401000, stack=b"abc", extra_padding=64),
        builders.evidence_record(sequence=6, pc=0x402000),
        builders.evidence_record(sequence=7, pc=0x403000, stack=bytes(range(16)), registers={0: 15}),
    )
    batch = payloads.decode_evidence(block.payload)
    assert batch.rows["sequence"].tolist() == [5, 6, 7]
    assert batch.registers[:, builders.RIP].tolist() == [0x401000, 0x402000, 0x403000]
    assert batch.registers[2, 0] == 15
    assert batch.known.sum(axis=1).tolist() == [2, 2, 3]
    slices = [
        batch.data[at : at + size].tobytes()
        for at, size in zip(batch.stack_offset, batch.rows["stack_bytes"], strict=True)
    ]
    assert slices == [b"abc", b"", bytes(range(16))]
    assert (batch.stack_offset % 8 == 0).all()


def test_a_chain_stands_behind_what_there_is_of_the_stack() -> None:
    block = builders.evidence(
        builders.evidence_record(sequence=1, stack=b"abc", chain=[0x401000, 0x402000]),
        builders.evidence_record(sequence=2, stack=bytes(16)),
        builders.evidence_record(sequence=3, stack=bytes(64), words={7: 1, 0: 2, 3: 9}, chain=[0x403000]),
        builders.evidence_record(sequence=4, chain=[], extra_padding=64),
    )
    batch = payloads.decode_evidence(block.payload)
    chains = frame_chains.read(batch.data, batch.chain_offset)
    assert chains.is_sent.tolist() == [True, False, True, True]
    assert chains.counts.tolist() == [2, 0, 1, 0]
    assert chains.addresses.tolist() == [0x401000, 0x402000, 0x403000]


def test_unknown_registers_are_zero_whatever_was_sent() -> None:
    record = bytearray(builders.evidence_record(sequence=1, pc=0x401000))
    record[EVIDENCE.itemsize : EVIDENCE.itemsize + 8] = b"\xff" * 8
    batch = payloads.decode_evidence(bytes(record))
    assert batch.registers[0, 0] == 0
    assert not batch.known[0, 0]


def test_empty_evidence_block() -> None:
    batch = payloads.decode_evidence(b"")
    assert len(batch) == 0
    assert batch.registers.shape == (0, 0)


SOUND = builders.evidence_record(sequence=1, stack=bytes(16), above=(32, {0: 1, 3: 4}))


def record(stack_bytes: int, **fields: Any) -> bytes:
    return builders.evidence_record(sequence=2, stack=bytes(stack_bytes), **fields)


def patched(sound: bytes, at: int, size: int, value: int) -> bytes:
    at %= len(sound)
    return sound[:at] + value.to_bytes(size, "little") + sound[at + size :]


def header(field: str, value: int) -> bytes:
    return patched(record(0), EVIDENCE.fields[field][1], EVIDENCE[field].itemsize, value)  # type: ignore[index]


def cut(sound: bytes, size: int) -> bytes:
    return patched(sound, 0, 4, len(sound) - size)[:-size]


WORDS_AT = EVIDENCE.itemsize + 8 * builders.X86_64_REGISTERS
CONTRADICTIONS = [
    ("", header("record_bytes", 0)), ("", header("record_bytes", 148)), ("", header("record_bytes", 2**31)),
    ("", header("record_bytes", 313)), ("", header("stack_bytes", 2**32 - 1)), ("", header("n_registers", 65)),
    ("", header("n_registers", 22)), ("", header("n_fixups", 5)),
    # a chain longer than its record, and one that is not there
    *((": its frame records", patched(record(16, chain=[1, 2]), -24, 4, count)) for count in (3, 257, 2**32 - 1)),
    (": its frame records", record(16, flags=EvidenceFlag.FRAME_CHAIN)),
    # words beyond their slice, of one longer than any, and of one not in words; more words than there are
    (": its words", record(24, words={3: 5})), (": its words", record((1 << 18) + 8, words={0: 5})),
    (": its words", record(20, words={0: 5})),
    *((": its words", patched(record(24, words={0: 5}), WORDS_AT, 8, n)) for n in (2, 2**61, 2**64 - 1)),
    # words above: beyond their reach, not in words, farther than allowed, behind a slice that ends within a word
    (": its words above", record(16, above=(32, {4: 1}))), (": its words above", record(16, above=(31, {0: 1}))),
    (": its words above", record(16, above=(2**20 + 8, {0: 1}))), (": its words above", record(20, above=(32, {0: 1}))),
    # words above that are not there, nor their number; behind a sparse slice
    (": its words above", cut(record(16, above=(32, {0: 1, 1: 2})), 8)),
    (": its words above", cut(record(16, above=(32, {})), 8)),
    (": its words above", record(16, words={1: 5}, above=(32, {0: 1}))),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "contradicting"), CONTRADICTIONS)
def test_a_record_that_contradicts_itself_is_refused(reason: str, contradicting: bytes) -> None:
    assert len(payloads.decode_evidence(SOUND)) == 1
    with pytest.raises(MalformedBlock, match=f"at byte {len(SOUND)}{reason}"):
        payloads.decode_evidence(SOUND + contradicting)


@given(st.binary(max_size=64).map(lambda b: b[: len(b) & ~7]), st.sampled_from(list(BlockKind)))
def test_any_payload_is_decoded_or_refused(data: bytes, kind: BlockKind) -> None:
    decode = {
        BlockKind.EVIDENCE: payloads.decode_evidence,
        BlockKind.MAPS: payloads.decode_maps,
        BlockKind.MAPPINGS: payloads.decode_mappings,
        BlockKind.PROCESS: payloads.decode_processes,
        BlockKind.EVENTS: payloads.decode_events,
        BlockKind.STATUS: payloads.decode_status,
        BlockKind.ERROR: payloads.decode_error,
        BlockKind.END: payloads.decode_end,
        BlockKind.HELLO: payloads.decode_hello,
        BlockKind.TRACES: payloads.decode_traces,
    }.get(kind)
    try:
        if kind in (BlockKind.LIVE, BlockKind.KEYS, BlockKind.SITES):
            payloads.decode_chunk(Block(kind, data))
        elif decode is not None:
            decode(data)  # type: ignore[operator]
    except MalformedBlock as error:
        assert error.kind == kind


def test_live_columns_lie_in_the_order_of_the_header() -> None:
    """ml_u64 address, size, timestamp_ns, sequence, key; ml_u32 pid, tid, function, sample_bytes."""
    wide = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 15]]
    narrow = [[16, 17, 18], [19, 20, 21], [22, 23, 24], [25, 26, 27]]
    payload = struct.pack("<QQII", 9, 99, 3, 1) + np.array(wide, "<u8").tobytes()
    payload += np.array(narrow, "<u4").tobytes()
    chunk = payloads.decode_chunk(Block(BlockKind.LIVE, payload))
    assert (chunk.snapshot, chunk.timestamp_ns, chunk.last) == (9, 99, True)
    assert [chunk.rows[name].tolist() for name in LIVE_ROW.names or ()] == wide + narrow
    assert payloads.encode_chunk(BlockKind.LIVE, chunk).payload == payload


def test_count_of_a_chunk_beyond_its_payload() -> None:
    with pytest.raises(MalformedBlock, match="4294967295 rows of 56 bytes"):
        payloads.decode_chunk(Block(BlockKind.LIVE, struct.pack("<QQII", 1, 1, 2**32 - 1, 1)))


def test_mappings_with_paths_of_any_length_and_bytes() -> None:
    records = [
        builders.mapping(0x1000, 0x2000, "/a", timestamp_ns=5),
        builders.mapping(0x3000, 0x4000, "", timestamp_ns=6),
        builders.mapping(0x5000, 0x6000, "/lib/größe.so", timestamp_ns=7),
    ]
    rows, paths = payloads.decode_mappings(b"".join(records))
    assert rows["start"].tolist() == [0x1000, 0x3000, 0x5000]
    assert paths == ["/a", "", "/lib/größe.so"]


def test_traces_round_trip() -> None:
    traces = np.zeros(2, blocks.TRACE_ROW)
    traces["n_frames"], traces["function"] = [2, 1], Function.CALLOC
    frames = np.zeros(3, blocks.FRAME_ROW)
    frames["address"], frames["method"] = [7, 8, 9], 3
    chunk = payloads.decode_traces(
        payloads.encode_traces(payloads.TraceChunk(4, True, traces, frames)).payload
    )
    assert chunk.first_trace == 4
    assert (chunk.traces == traces).all()
    assert (chunk.frames == frames).all()


def test_traces_with_more_frames_than_there_are() -> None:
    traces = np.zeros(1, blocks.TRACE_ROW)
    traces["n_frames"] = 2**32 - 1
    block = payloads.encode_traces(payloads.TraceChunk(0, True, traces, np.zeros(1, blocks.FRAME_ROW)))
    with pytest.raises(MalformedBlock):
        payloads.decode_traces(block.payload)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "command pid package only_pids labels api_level tracer sample_bytes options about missing"
    " left_out scenario marks memory memory_of_others process_names peak_bound"
)


def test_missing_fields() -> None:
    session = SessionInfo.decode({})
    assert session.tracing.tracer == "unknown" and session.tracing.unwind_mode == "cfi"
    assert session.target.pid == 0 and session.target.only_pids is None
    assert session.findings.run_ends_ns is None and session.findings.peak_bound is None


def test_unknown_fields_are_kept() -> None:
    session = SessionInfo.decode({"from": "the future", "pid": 1}) | {"pid": 2, "missing": ["a"]}
    assert session.fields == {"from": "the future", "pid": 2, "missing": ["a"]}
    assert session.target.pid == 2 and [reason.text for reason in session.findings.reasons] == ["a"]


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.dictionaries(st.sampled_from(NAMES.split()), JSON))
def test_any_json_is_decoded(fields: dict[str, object]) -> None:
    session = SessionInfo.decode(fields)
    assert isinstance(session.target.pid, int) and all(
        isinstance(end, int) for _, end in session.findings.marks
    )


SP = 0x7FFF0000
UNKNOWN = stack_tail.UNKNOWN


def test_the_stack_goes_on_behind_its_slice(tmp_path: Path) -> None:
    """Words are at their offsets, the rest is marked; a return probe's trampoline among them is undone."""
    slice_ = b"".join(word.to_bytes(8, "little") for word in (1, 2))
    block = evidence(
        evidence_record(sequence=1, sp=SP, stack=slice_),
        evidence_record(
            sequence=2, sp=SP, stack=slice_, above=(32, {0: 7, 2: 9}), fixups=[(SP + 32, 0x401234)]
        ),
        evidence_record(sequence=3, sp=SP, stack=slice_, chain=[5], above=(16, {1: 8})),
        evidence_record(sequence=4, sp=SP, stack=b"", above=(8, {})),
    )
    capture, recording = read(write_recording(tmp_path / "a.memleak", [hello(), block]))
    (samples,) = read_samples(capture.evidence(), np.zeros(4, np.int32), recording.read_block, ARCH)
    words = samples.batch.stack_bytes.view("<u8")
    starts, lengths = samples.batch.stack_offset // 8, samples.batch.stack_length // 8
    found = [words[at : at + n].tolist() for at, n in zip(starts, lengths, strict=True)]
    assert found == [[1, 2], [1, 2, 7, UNKNOWN, 0x401234, UNKNOWN], [1, 2, UNKNOWN, 8], [UNKNOWN]]
    assert samples.chains.addresses.tolist() == [5]


def settled(flags: int, *frames: tuple[int, int], end: TraceEnd) -> TraceBatch:
    """One trace of frames (address, sp) behind a slice that ended at 116."""
    n, rows = len(frames), np.zeros(1, EVIDENCE)
    rows["flags"] = flags
    addresses, sps = np.array(frames, np.uint64).T
    methods, ends = np.full(n, Method.EH_FRAME, np.uint8), np.array([end], np.uint8)
    unwound = TraceBatch(np.array([0, n]), addresses, sps, np.ones(n, bool), methods, ends)
    return stack_tail.settled(unwound, rows, np.array([116], np.uint64))


@pytest.mark.parametrize("flags", [EvidenceFlag.STACK_ABOVE, EvidenceFlag.AT_RETURN])
def test_known_words_change_nothing(flags: EvidenceFlag) -> None:
    found = settled(flags, (0x401000, 100), (0x402000, 116), (0x403000, 132), end=TraceEnd.ROOT)
    assert found.address.tolist() == [0x401000, 0x402000, 0x403000]
    assert found.end.tolist() == [TraceEnd.ROOT]


def test_a_word_that_is_not_known_ends_the_stack() -> None:
    """No frame is made of it, whatever end the unwinder found."""
    frames = (0x401000, 100), (0x402000, 132), (UNKNOWN, 148)
    found = settled(EvidenceFlag.STACK_ABOVE, *frames, end=TraceEnd.NO_MAPPING)
    assert found.address.tolist() == [0x401000, 0x402000]
    assert found.offsets.tolist() == [0, 2]
    assert found.end.tolist() == [TraceEnd.STACK_TRUNCATED]
