"""Unwinds the samples that the engine cannot step, one at a time; equal stacks only once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import Ints, SampleBatch, TraceBatch, TraceEnd
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.step import StepFrame, unwind_sample


@dataclass(slots=True)
class ScalarTraces:
    """Frames of some samples, by sample and level."""

    samples: Ints
    depth: Ints
    end: NDArray[np.uint8]
    _frames: list[StepFrame]

    def write(self, first: Ints, out: TraceBatch) -> None:
        """Writes the frames of each sample to rows [first, first + depth) of `out`."""
        if not self._frames:
            return
        begins = np.cumsum(self.depth) - self.depth
        rows = np.repeat(first - begins, self.depth) + np.arange(len(self._frames))
        address, sp, is_return, method = zip(*self._frames, strict=True)
        out.address[rows] = np.array(address, np.uint64)
        out.sp[rows] = np.array(sp, np.uint64)
        out.is_return[rows] = np.array(is_return, np.bool_)
        out.method[rows] = np.array(method, np.uint8)


def unwind_one_by_one(samples: SampleBatch, chosen: Ints, planner: Planner, max_frames: int) -> ScalarTraces:
    """The traces of samples[chosen]. A step costs 20 us, so comparing whole slices pays."""
    known: dict[tuple[object, ...], tuple[list[StepFrame], TraceEnd]] = {}
    traces = []
    for i in chosen.tolist():
        start, length = int(samples.stack_offset[i]), int(samples.stack_length[i])
        identity = (
            int(samples.space[i]),
            bool(samples.at_return[i]),
            int(samples.stack_address[i]),
            samples.registers[i].tobytes(),
            samples.known[i].tobytes(),
            samples.stack_bytes[start : start + length].tobytes(),
            samples.extra_memory[i] if samples.extra_memory is not None else None,
        )
        if identity not in known:
            known[identity] = unwind_sample(samples, i, planner, max_frames)
        traces.append(known[identity])
    return ScalarTraces(
        chosen,
        np.array([len(frames) for frames, _ in traces], np.int64),
        np.array([end for _, end in traces], np.uint8),
        [frame for frames, _ in traces for frame in frames],
    )
