"""Words of the stack above a slice that was too short: read, refused where they contradict themselves, and their frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.recording.file import Recording
from memleak_android.host.stacks.samples import read_samples
from memleak_android.host.wire import payloads, stack_tail
from memleak_android.host.wire.blocks import EVIDENCE, EvidenceFlag
from memleak_android.host.wire.payloads import MalformedBlock
from memleak_android.unwind.arch import arch_by_name
from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd
from tests.support.builders.blocks import evidence, evidence_record, hello, write_recording

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
    capture, recording = Capture(), Recording(write_recording(tmp_path / "a.memleak", [hello(), block]))
    for offset, one in recording.blocks():
        capture.add(one, offset)
    arch = arch_by_name("x86_64")
    assert arch
    (samples,) = read_samples(capture.evidence(), np.zeros(4, np.int32), recording.read_block, arch)
    words = samples.batch.stack_bytes.view("<u8")
    starts, lengths = samples.batch.stack_offset // 8, samples.batch.stack_length // 8
    found = [words[at : at + n].tolist() for at, n in zip(starts, lengths, strict=True)]
    assert found == [[1, 2], [1, 2, 7, UNKNOWN, 0x401234, UNKNOWN], [1, 2, UNKNOWN, 8], [UNKNOWN]]
    assert samples.chains.addresses.tolist() == [5]


@pytest.mark.parametrize(
    ("reach", "words", "stack", "cut"),
    [
        (32, {4: 1}, 16, 0),  # beyond its reach
        (31, {0: 1}, 16, 0),  # not in words
        (2**20 + 8, {0: 1}, 16, 0),  # farther than allowed
        (32, {0: 1}, 20, 0),  # behind a slice that ends within a word
        (32, {0: 1, 1: 2}, 16, 8),  # words that are not there
        (32, {}, 16, 8),  # nor their number
    ],
)
def test_words_that_contradict_themselves(reach: int, words: dict[int, int], stack: int, cut: int) -> None:
    sound = evidence_record(sequence=1, stack=bytes(16), above=(32, {0: 1, 3: 4}))
    record = evidence_record(sequence=2, stack=bytes(stack), above=(reach, words))
    record = (len(record) - cut).to_bytes(4, "little") + record[4 : len(record) - cut]
    payloads.decode_evidence(sound)
    with pytest.raises(MalformedBlock, match=f"at byte {len(sound)}: its words above"):
        payloads.decode_evidence(sound + record)


def test_none_stand_behind_a_sparse_slice() -> None:
    record = evidence_record(sequence=1, stack=bytes(16), words={1: 5}, above=(32, {0: 1}))
    with pytest.raises(MalformedBlock, match="its words above"):
        payloads.decode_evidence(record)


def traces(*frames: tuple[int, int], end: TraceEnd) -> TraceBatch:
    """One trace of frames (address, sp)."""
    n = len(frames)
    return TraceBatch(
        np.array([0, n]),
        np.array([address for address, _ in frames], np.uint64),
        np.array([sp for _, sp in frames], np.uint64),
        np.ones(n, bool),
        np.full(n, Method.EH_FRAME, np.uint8),
        np.array([end], np.uint8),
    )


LATE = EvidenceFlag.STACK_ABOVE | EvidenceFlag.ABOVE_LATE
BY_CFI, READ_LATE = int(Method.EH_FRAME), int(Method.LATE)


@pytest.mark.parametrize(
    ("flags", "methods"),
    [
        (LATE, [BY_CFI, BY_CFI, READ_LATE]),
        (EvidenceFlag.STACK_ABOVE, [BY_CFI] * 3),
        (EvidenceFlag.AT_RETURN, [BY_CFI] * 3),
    ],
)
def test_frames_read_late_are_marked(flags: EvidenceFlag, methods: list[int]) -> None:
    rows = np.zeros(1, EVIDENCE)
    rows["flags"] = flags
    found = stack_tail.settled(
        traces((0x401000, 100), (0x402000, 116), (0x403000, 132), end=TraceEnd.ROOT),
        rows,
        np.array([116], np.uint64),
    )
    assert found.method.tolist() == methods
    assert found.end.tolist() == [TraceEnd.ROOT]


def test_a_word_that_is_not_known_ends_the_stack() -> None:
    """No frame is made of it, whatever end the unwinder found."""
    rows = np.zeros(1, EVIDENCE)
    rows["flags"] = LATE
    found = stack_tail.settled(
        traces((0x401000, 100), (0x402000, 132), (UNKNOWN, 148), end=TraceEnd.NO_MAPPING),
        rows,
        np.array([116], np.uint64),
    )
    assert found.address.tolist() == [0x401000, 0x402000]
    assert found.method.tolist() == [BY_CFI, READ_LATE]
    assert found.offsets.tolist() == [0, 2]
    assert found.end.tolist() == [TraceEnd.STACK_TRUNCATED]
