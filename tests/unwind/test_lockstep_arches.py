"""The lock-step and the scalar unwinder agree on any registers: captured stacks, their pcs and pointers moved about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from corpus import case_folder, expectation, options_of

from memleak_android.unwind import BatchUnwinder, SampleBatch
from memleak_android.unwind.plan import Planner
from memleak_android.unwind.snapshot import Snapshot
from memleak_android.unwind.step import unwind_sample

SAMPLES = 300


def moved_about(samples: SampleBatch, pcs: list[int], seed: int) -> SampleBatch:
    """Copies with other pcs, stack pointers, link registers, frame pointers; some registers not captured."""
    random = np.random.default_rng(seed)
    arch = samples.arch
    registers = np.repeat(samples.registers, SAMPLES, 0)
    known = np.repeat(samples.known, SAMPLES, 0)
    registers[:, arch.pc] = random.choice(np.array(pcs, np.uint64), SAMPLES)
    start, length = int(samples.stack_address[0]), int(samples.stack_length[0])
    for slot in (arch.sp, *arch.callee_saved):
        chosen = random.random(SAMPLES) < 0.5
        word = random.integers(0, length // arch.word_bytes, SAMPLES) * arch.word_bytes
        registers[chosen, slot] = (start + word[chosen]).astype(np.uint64)
    if arch.link is not None:
        chosen = random.random(SAMPLES) < 0.3
        registers[chosen, arch.link] = random.choice(np.array(pcs, np.uint64), int(chosen.sum()))
    known &= random.random(known.shape) < 0.95
    known[:, arch.sp] = True
    every = np.zeros(SAMPLES, np.int64)
    return SampleBatch(
        arch,
        registers,
        known,
        np.repeat(samples.stack_address, SAMPLES),
        every,
        every + random.integers(length // 2, length + 1, SAMPLES) // arch.word_bytes * arch.word_bytes,
        samples.stack_bytes,
        np.zeros(SAMPLES, np.int32),
        random.random(SAMPLES) < 0.3,
    )


@pytest.mark.parametrize("frame_pointers", [True, False])
@pytest.mark.parametrize(
    "name", ["photos_reset_arm64", "straddle_arm64", "jit_map_arm", "offset_arm", "eh_frame_hdr_begin_x86_64"]
)
def test_the_same_frames(name: str, frame_pointers: bool) -> None:
    folder = case_folder(name)
    options = replace(options_of(expectation(folder)), memory_files=("stack.data",))
    if not (folder / "stack.data").exists():
        options = replace(options, memory_files=("stack1.data",))
    snapshot = Snapshot(folder, options)
    frames, _ = snapshot.unwind()
    pcs = [f.pc + 4 * k for f in frames for k in range(-20, 21)] + [0, 1 << 55 | frames[0].pc]
    one = replace(snapshot.sample(), beside=None)
    samples = moved_about(one, [pc & 2**64 - 1 for pc in pcs], seed=len(name))
    if not len(one.stack_bytes):
        pytest.fail("no stack")
    spaces = [snapshot.space]
    traces = BatchUnwinder(spaces, snapshot, frame_pointers=frame_pointers).unwind(samples)
    planner = Planner(snapshot.arch, spaces, snapshot, frame_pointers=frame_pointers)
    deep = 0
    for i in range(SAMPLES):
        expected, end = unwind_sample(samples, i, planner, 1024)
        span = slice(int(traces.offsets[i]), int(traces.offsets[i + 1]))
        columns = (traces.address, traces.sp, traces.is_return, traces.method)
        found = list(zip(*(column[span].tolist() for column in columns), strict=True))
        assert found == [tuple(frame) for frame in expected], f"sample {i}"
        assert traces.end[i] == end, f"sample {i}"
        deep += len(expected) > 3
    assert deep > 10
