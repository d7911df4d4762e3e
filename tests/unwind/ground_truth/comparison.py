"""Chains of the unwinder against the shadow stack's."""

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind import (
    BatchUnwinder,
    Mapping,
    Method,
    Module,
    SampleBatch,
    TraceBatch,
    TraceEnd,
    UnwindError,
    arch_by_name,
)
from memleak_android.unwind.memory import MemoryRegions
from tests.unwind.ground_truth.guest import Run


class Files:
    """The modules of a run, opened once."""

    def module(self, space: int, mapping: Mapping) -> Module | None:
        return _opened(mapping.path) if mapping.path.startswith("/") else None


@cache
def _opened(path: str) -> Module | None:
    try:
        return Module.from_path(path)
    except UnwindError:
        return None


def batch_of(run: Run) -> SampleBatch:
    """The samples as an unwinder gets them: no word of the shadow stack."""
    found, arch = run.recorded, arch_by_name(run.arch)
    extra_memory = None
    if found.beside_length.any():
        stack = memoryview(found.stack)  # type: ignore[arg-type]
        beside = (found.beside_address, found.beside_offset, found.beside_length)
        extra_memory = [
            MemoryRegions([(address, stack[at : at + size])]) if size else None
            for address, at, size in zip(*(column.tolist() for column in beside), strict=True)
        ]
    known, at_return = np.ones(found.registers.shape, np.bool_), np.zeros(len(found), np.bool_)
    stack_columns = (found.registers[:, arch.sp], found.stack_offset, found.stack_length, found.stack)
    return SampleBatch(arch, found.registers, known, *stack_columns, found.space, at_return, extra_memory)


@dataclass(frozen=True, slots=True)
class Outcome:
    """same: by sample, whether all frames are the true ones. first_wrong: the first that is not, -1 for none."""

    run: Run
    traces: TraceBatch
    same: NDArray[np.bool_]
    is_complete: NDArray[np.bool_]
    first_wrong: NDArray[np.int64]

    def true_chain(self, i: int) -> list[int]:
        found = self.run.recorded
        return found.chain[found.chain_offset[i] :][: found.chain_length[i]].tolist()

    def chain(self, i: int) -> list[int]:
        return self.traces.address[self.traces.offsets[i] : self.traces.offsets[i + 1]].tolist()

    def name(self, address: int, space: int) -> str:
        """file+vaddr of an address."""
        mapping = self.run.spaces[space].find(address)
        module = None if mapping is None else Files().module(space, mapping)
        if mapping is None or module is None:
            return hex(address)
        return f"{mapping.path.rsplit('/', 1)[-1]}+{module.vaddr_of(mapping, address):#x}"

    def kinds(self) -> Counter[str]:
        """Names the difference: the method that found the last right frame's caller, or the chain's end."""
        return Counter(self.kind(i) for i in np.flatnonzero(~self.same).tolist())

    def kind(self, i: int) -> str:
        k, first = int(self.first_wrong[i]), int(self.traces.offsets[i])
        frames, space = self.chain(i), int(self.run.recorded.space[i])
        truth = self.true_chain(i)
        where = self.name(truth[k - 1], space)
        if k >= len(frames):
            return f"ends {TraceEnd(self.traces.end[i]).name} in frame {k - 1} {where}"
        if k >= len(truth):
            return f"goes on from {where} by {Method(self.traces.method[first + k]).name}"
        return f"wrong by {Method(self.traces.method[first + k]).name} from frame {k - 1} {where}"


def compared(run: Run) -> Outcome:
    """All chains of a run, whole or not at all: a chain is right when it has every frame and no other."""
    samples = batch_of(run)
    traces = BatchUnwinder(run.spaces, Files()).unwind(samples)
    found, n = run.recorded, len(samples)
    lengths = np.diff(traces.offsets)
    first_wrong = np.full(n, -1, np.int64)
    for i in range(n):
        truth = found.chain[found.chain_offset[i] :][: found.chain_length[i]]
        chain = traces.address[traces.offsets[i] : traces.offsets[i + 1]]
        k = min(len(truth), len(chain))
        different = np.flatnonzero(truth[:k] != chain[:k])
        if len(different):
            first_wrong[i] = different[0]
        elif lengths[i] != len(truth):
            first_wrong[i] = k
    is_complete = traces.end == TraceEnd.ROOT
    return Outcome(run, traces, first_wrong < 0, is_complete, first_wrong)
