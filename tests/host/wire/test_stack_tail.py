"""Words of the stack above a slice that was too short: read, and their frames."""

from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.stacks.samples import read_samples
from memleak_android.host.wire import stack_tail
from memleak_android.host.wire.blocks import EVIDENCE, EvidenceFlag
from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd
from tests.support.builders.analysed import read
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
