"""Evidence as the unwinder takes it."""

from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.stacks.samples import read_samples
from memleak_android.unwind.arch.x86_64 import ARCH
from tests.support.builders.analysed import read
from tests.support.builders.blocks import RSP, evidence, evidence_record, hello, write_recording


def test_trampolines_in_the_slice_are_undone(tmp_path: Path) -> None:
    stack = b"".join(word.to_bytes(8, "little") for word in (1, 0x7FFFFFFFE000, 3, 0x7FFFFFFFE000))
    sp = 0x7FFF0000
    record = evidence_record(
        sequence=1,
        pc=0x401000,
        sp=sp,
        stack=stack,
        # the third slot lies below the slice, the fourth reaches beyond its end
        fixups=[(sp + 8, 0x401234), (sp + 24, 0x405678), (sp - 8, 9), (sp + 28, 9)],
    )
    capture, recording = read(write_recording(tmp_path / "a.memleak", [hello(), evidence(record)]))
    (samples,) = read_samples(capture.evidence(), np.zeros(1, np.int32), recording.read_block, ARCH)
    words = samples.batch.stack_bytes.view("<u8").tolist()
    assert words == [1, 0x401234, 3, 0x405678]
    assert samples.batch.registers[0, RSP] == sp


def test_samples_come_back_in_batches_with_their_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memleak_android.host.stacks.samples.BATCH_BYTES", 100)
    blocks = [
        evidence(*(evidence_record(sequence=10 * b + r, stack=bytes([10 * b + r]) * 48) for r in range(3)))
        for b in range(1, 4)
    ]
    capture, recording = read(write_recording(tmp_path / "a.memleak", [hello(), *blocks]))
    references = capture.evidence()[[8, 0, 4, 5]]
    found = {}
    batches = list(read_samples(references, np.arange(4, dtype=np.int32), recording.read_block, ARCH))
    assert len(batches) > 1
    for samples in batches:
        for i, index in enumerate(samples.indexes.tolist()):
            at, size = samples.batch.stack_offset[i], samples.batch.stack_length[i]
            found[index] = (
                int(samples.rows["sequence"][i]),
                samples.batch.stack_bytes[at : at + size].tolist(),
            )
            assert samples.batch.space[i] == index
    assert found == {i: (s, [s] * 48) for i, s in enumerate((32, 10, 21, 22))}


def test_slices_whole_and_sparse(tmp_path: Path) -> None:
    """Words are at their offsets, the rest is 0; a return probe's trampoline among them is undone."""
    sp = 0x7FFF0000
    block = evidence(
        evidence_record(sequence=1, sp=sp, stack=bytes(48), words={0: 11, 5: 2**64 - 1, 2: 13}),
        evidence_record(sequence=2, sp=sp, stack=b"abcdefgh"),
        evidence_record(sequence=3, sp=sp, stack=bytes(24), words={1: 7}, fixups=[(sp + 8, 0x401234)]),
        evidence_record(sequence=4, sp=sp, stack=bytes(8), words={}),
    )
    capture, recording = read(write_recording(tmp_path / "a.memleak", [hello(), block]))
    references = capture.evidence()[[3, 1, 2, 0]]
    (samples,) = read_samples(references, np.zeros(4, np.int32), recording.read_block, ARCH)
    found = {}
    for i, sequence in enumerate(samples.rows["sequence"].tolist()):
        at, size = samples.batch.stack_offset[i], samples.batch.stack_length[i]
        found[sequence] = samples.batch.stack_bytes[at : at + size].view("<u8").tolist()
    whole = int.from_bytes(b"abcdefgh", "little")
    assert found == {1: [11, 0, 13, 0, 0, 2**64 - 1], 2: [whole], 3: [0, 0x401234, 0], 4: [0]}


def test_what_a_handler_has_interrupted_is_a_second_stack(tmp_path: Path) -> None:
    """With a return probe's trampoline in it, which is undone."""
    words = b"".join(word.to_bytes(8, "little") for word in (4, 0x7FFFFFFFE000))
    records = [
        evidence_record(sequence=1, stack=bytes(16)),
        evidence_record(sequence=2, stack=bytes(8), interrupted=(0x9000, words), fixups=[(0x9008, 0x401234)]),
        evidence_record(sequence=3, stack=bytes(8), chain=[5], interrupted=(0xA000, words)),
    ]
    capture, recording = read(write_recording(tmp_path / "a.memleak", [hello(), evidence(*records)]))
    (samples,) = read_samples(capture.evidence(), np.zeros(3, np.int32), recording.read_block, ARCH)
    none, second, third = samples.batch.extra_memory or ()
    assert none is None and second is not None and third is not None
    assert [second.read(0x9000 + at, 8) for at in (0, 8)] == [4, 0x401234]
    assert third.read(0xA000, 8) == 4 and third.bytes_at(0xA008, 99) == words[8:]
