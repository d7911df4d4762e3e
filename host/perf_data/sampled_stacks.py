"""Stacks of a sampling profiler, the input of reports of `unwind perf.data`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.symbols.symbolizer import ResolvedFrame
from memleak_android.unwind.trace import Method, TraceEnd

KERNEL = "[kernel.kallsyms]"
NOT_CAPTURED = 255  # in `end`: a sample without registers and stack; its frames are the kernel's callchain


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """A location in code.

    vaddr: in the module; the address itself if the file is unknown.
    functions: innermost inlined first, never empty; an unknown name is "".
    """

    module: str
    build_id: str
    vaddr: int
    functions: tuple[ResolvedFrame, ...]


@dataclass(frozen=True, slots=True)
class SampledStacks:
    """n samples in order of time; the frames of sample i are [offsets[i], offsets[i + 1]), innermost first.

    location: indices into `locations`, which grows from batch to batch.
    lookup: the resolved address (of a return address the byte before it).
    method: enum Method.
    end: enum TraceEnd or NOT_CAPTURED.
    """

    comm: Sequence[str]
    pid: NDArray[np.uint32]
    tid: NDArray[np.uint32]
    time_ns: NDArray[np.uint64]
    period: NDArray[np.uint64]
    event: Sequence[str]
    arch: Sequence[str]
    offsets: NDArray[np.int64]
    location: NDArray[np.int32]
    lookup: NDArray[np.uint64]
    sp: NDArray[np.uint64]
    method: NDArray[np.uint8]
    end: NDArray[np.uint8]
    locations: Sequence[CodeLocation]

    def __len__(self) -> int:
        return len(self.end)


def first_joined(stacks: SampledStacks) -> dict[int, int]:
    """For each joined sample, the index in the batch of its first frame from another sample."""
    frames = np.flatnonzero(stacks.method == Method.JOINED)
    owner = np.searchsorted(stacks.offsets, frames, "right") - 1
    samples, first = np.unique(owner, return_index=True)
    return dict(zip(samples.tolist(), frames[first].tolist(), strict=True))


def unfinished(end: int) -> str:
    """Why a stack is not whole; "" if it is whole or was not captured."""
    if end in (TraceEnd.ROOT, NOT_CAPTURED):
        return ""
    return TraceEnd(end).name.lower().replace("stack_", "").replace("_", " ")
