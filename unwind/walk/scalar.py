"""Unwinds the samples that the engine cannot step, one at a time; equal stacks only once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


class _Trace(NamedTuple):
    frames: list[StepFrame]
    end: TraceEnd


class ScalarUnwinder:
    """A step costs 20 us, so comparing whole slices pays."""

    def __init__(self, planner: Planner, max_frames: int) -> None:
        self._planner = planner
        self._max_frames = max_frames
        self._known: dict[tuple[object, ...], _Trace] = {}

    def unwind(self, samples: SampleBatch, chosen: Ints) -> ScalarTraces:
        """The traces of samples[chosen]."""
        traces = [self._trace(samples, i) for i in chosen.tolist()]
        self._known.clear()
        return ScalarTraces(
            chosen,
            np.array([len(trace.frames) for trace in traces], np.int64),
            np.array([trace.end for trace in traces], np.uint8),
            [frame for trace in traces for frame in trace.frames],
        )

    def _trace(self, samples: SampleBatch, i: int) -> _Trace:
        if samples.extra_memory is not None and samples.extra_memory[i] is not None:
            return _Trace(*unwind_sample(samples, i, self._planner, self._max_frames))
        start, length = int(samples.stack_offset[i]), int(samples.stack_length[i])
        stack = samples.stack_bytes[start : start + length].tobytes()
        identity = (
            int(samples.space[i]),
            bool(samples.at_return[i]),
            int(samples.stack_address[i]),
            samples.registers[i].tobytes(),
            samples.known[i].tobytes(),
            stack,
        )
        trace = self._known.get(identity)
        if trace is None:
            trace = _Trace(*unwind_sample(samples, i, self._planner, self._max_frames))
            self._known[identity] = trace
        return trace
