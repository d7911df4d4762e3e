"""Evidence references → traces in a table: reads the evidence back from the file and unwinds it in batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import RecordingError
from memleak_android.host.profile.profile import FpAgreement
from memleak_android.host.stacks import fp_agreement
from memleak_android.host.stacks.address_spaces import AddressSpaces, ProcessSpace
from memleak_android.host.stacks.columns import frame_rows, trace_rows
from memleak_android.host.stacks.kernel_stacks import KernelStacks
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.stacks.python_code import PythonFunctions
from memleak_android.host.stacks.python_stacks import PythonStacks
from memleak_android.host.stacks.samples import ReadBlock, Samples, read_samples
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire import frame_chains, stack_tail
from memleak_android.host.wire.blocks import ArchNumber, EvidenceFlag, Rows
from memleak_android.unwind.arch import Arch, arch_by_name
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.maps import Mapping
from memleak_android.unwind.trace import Method, TraceBatch
from memleak_android.unwind.walk.batch import BatchUnwinder


@dataclass(frozen=True, slots=True)
class UnwindPlan:
    """arch_number: of HELLO. mode: cfi, fp (frame records) or both. max_frames: of a stack that is not folded."""

    arch_number: int
    mode: str
    max_frames: int


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """n evidence references (EVIDENCE_REFERENCE) with the address space that each is unwound in.

    times_ns: the mappings of which moment apply. images: the number of the process's image at that moment.
    """

    references: Rows
    times_ns: NDArray[np.uint64]
    images: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MappedModules:
    """Implements unwind's ModuleSource."""

    files: ModuleFiles
    spaces: Sequence[ProcessSpace]

    def module(self, space: int, mapping: Mapping) -> Module | None:
        number = self.files.number(self.spaces[space].pid, mapping)
        return None if number is None else self.files.files[number].module


class StackUnwinder:
    """Unwinds each evidence record once for each image of its process; `stacks` holds the traces.

    kernel_symbols: texts of KERNEL_SYMBOLS; more may be appended until the first kernel stack is unwound.
    python: of the session; likewise at any time.
    """

    def __init__(
        self,
        read_block: ReadBlock,
        files: ModuleFiles,
        kernel_symbols: Sequence[str] = (),
        python: PythonFunctions | None = None,
        *,
        jobs: int = 1,
    ) -> None:
        self.files = files
        self.stacks = StackTable()
        self._read_block = read_block
        self._jobs = jobs
        self._traces: dict[tuple[int, int], int] = {}  # by sequence and image
        self._comparison = fp_agreement.Comparison()
        self._kernel = KernelStacks(kernel_symbols, files)
        self._python = PythonStacks(python or PythonFunctions(), files)

    def unwind(self, evidence: EvidenceView, spaces: AddressSpaces, plan: UnwindPlan) -> NDArray[np.int64]:
        """(n,) the trace of each reference, a number in `stacks`. Raises RecordingError if the architecture is unknown."""
        names = list(zip(evidence.references["sequence"].tolist(), evidence.images.tolist(), strict=True))
        last = {name: i for i, name in enumerate(names) if name not in self._traces}
        new = np.array(list(last.values()), np.int64)
        space = spaces.index(evidence.references["pid"][new], evidence.times_ns[new])
        if len(new):
            modules = MappedModules(self.files, spaces.spaces)
            unwinder = BatchUnwinder(spaces.spaces, modules, max_frames=UNWOUND_MAX, jobs=self._jobs)
            arch = arch_of(plan.arch_number)
            for samples in read_samples(evidence.references[new], space, self._read_block, arch):
                traces, frames = self._walk(samples, unwinder, spaces.spaces, plan)
                numbers = range(len(self.stacks), len(self.stacks) + len(traces))
                self.stacks.append(trace_rows(samples.rows, traces), frames)
                self._traces.update(
                    zip((names[i] for i in new[samples.indexes].tolist()), numbers, strict=True)
                )
        return np.array([self._traces[name] for name in names], np.int64)

    def agreement(self, mode: str) -> FpAgreement | None:
        """How far frame records agreed with unwind information; None unless both were followed."""
        return self._comparison.result() if mode == "both" else None

    def _walk(
        self, samples: Samples, unwinder: BatchUnwinder, spaces: Sequence[ProcessSpace], plan: UnwindPlan
    ) -> tuple[TraceBatch, Rows]:
        """The traces of the samples and their frames (FRAME_ROW). Mode `both` returns the traces by CFI."""
        batch, flags, mode = samples.batch, samples.rows["flags"], plan.mode
        if (
            flags & np.uint16(EvidenceFlag.CHAIN_IS_CFI)
        ).any():  # then all are: recorded by the linked-in library
            traces = frame_chains.traces(batch, samples.chains, spaces, Method.EH_FRAME)
            return traces, frame_rows(traces, batch.space, spaces, self.files)
        by_records = frame_chains.traces(batch, samples.chains, spaces) if mode in ("fp", "both") else None
        traces = by_records if by_records is not None and mode == "fp" else unwinder.unwind(batch)
        boundary = batch.stack_address + samples.rows["stack_bytes"].astype(np.uint64)
        traces = fold(stack_tail.settled(traces, samples.rows, boundary), plan.max_frames)
        frames = frame_rows(traces, batch.space, spaces, self.files)
        if (flags & np.uint16(EvidenceFlag.CHAIN_IS_KERNEL)).any():  # then all are
            return self._kernel.join(samples, traces, frames)
        if by_records is not None and mode == "both":
            is_judge = samples.chains.is_sent | ((flags & np.uint16(EvidenceFlag.STACK_SPARSE)) == 0)
            self._comparison.add(traces, by_records, is_judge, frames, self.files.files)
        return self._python.join(samples, traces, frames)


def arch_of(number: int) -> Arch:
    """Raises RecordingError where the number is not that of a supported architecture."""
    name = ArchNumber(number).name.lower() if number in set(ArchNumber) else f"number {number}"
    arch = arch_by_name(name)
    if arch is None:
        raise RecordingError(f"unsupported architecture: {name}", "use a newer memleak-android")
    return arch


# Recursions of different depth become the same stack, because the entry does not count.
UNWOUND_MAX = 1 << 16  # before it is
_PERIOD_MAX = 16  # frames of one round
_ROUNDS_KEPT = 8  # at each end


def fold(traces: TraceBatch, limit: int) -> TraceBatch:
    """Traces of at most about `limit` frames. What is left out has one frame of Method.FOLDED, without an address."""
    depth = np.diff(traces.offsets)
    deep = np.flatnonzero(depth > limit)
    if not len(deep):
        return traces
    is_kept = np.ones(len(traces.address), np.bool_)
    for begin, end in zip(traces.offsets[deep].tolist(), traces.offsets[deep + 1].tolist(), strict=True):
        is_kept[begin:end] = _kept(traces.address[begin:end], limit)
    is_folded = ~is_kept
    is_folded[1:] &= is_kept[:-1]
    stays = is_kept | is_folded
    counts = np.concatenate([[0], np.cumsum(stays)])
    return TraceBatch(
        counts[traces.offsets],
        np.where(is_folded, np.uint64(0), traces.address)[stays],
        traces.sp[stays],
        (traces.is_return & is_kept)[stays],
        np.where(is_folded, np.uint8(Method.FOLDED), traces.method)[stays],
        traces.end,
    )


def _kept(address: NDArray[np.uint64], limit: int) -> NDArray[np.bool_]:
    """A mask of the frames of one stack that stay."""
    kept = np.arange(len(address))
    for period in range(1, _PERIOD_MAX + 1):
        kept = kept[_of_few_rounds(address[kept], period)]
    if len(kept) > limit:
        kept = np.concatenate([kept[: limit // 2], kept[len(kept) - limit // 2 :]])
    is_kept = np.zeros(len(address), np.bool_)
    is_kept[kept] = True
    return is_kept


def _of_few_rounds(address: NDArray[np.uint64], period: int) -> NDArray[np.bool_]:
    """Leaves out the middle of each run in which every frame is that of `period` frames before."""
    is_kept = np.ones(len(address), np.bool_)
    repeats = np.concatenate([[False], address[period:] == address[:-period], [False]])
    edges = np.flatnonzero(repeats[1:] != repeats[:-1])
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        more = (end + period - begin) // period - 2 * _ROUNDS_KEPT
        first = begin + _ROUNDS_KEPT * period
        if more > 0:
            is_kept[first : first + more * period] = False
    return is_kept
