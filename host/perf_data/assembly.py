"""Joins kernel frames, unwound frames and names of a chunk into SampledStacks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.perf_data.code_locations import KERNEL_SPACE, CodeLocations
from memleak_android.host.perf_data.layout import Ints, SampleColumns
from memleak_android.host.perf_data.sampled_stacks import NOT_CAPTURED, SampledStacks
from memleak_android.host.perf_data.stacks import Chunk, SampleReader, SampleUnwinder
from memleak_android.unwind.trace import Method, TraceBatch
from memleak_android.unwind.walk.joining import join_truncated

_MARKS = np.uint64((1 << 64) - 4095)  # PERF_CONTEXT_MAX: entries from here on mark whose frames follow
_KERNEL, _USER = np.uint64((1 << 64) - 128), np.uint64((1 << 64) - 512)
_NO_SP = 0


class _Frames:
    """Frames of a chunk, in pieces. `owner` is the sample's index in the chunk."""

    def __init__(self) -> None:
        self.owner: list[Ints] = []
        self.space: list[NDArray[np.int32]] = []
        self.lookup: list[NDArray[np.uint64]] = []
        self.sp: list[NDArray[np.uint64]] = []
        self.method: list[NDArray[np.uint8]] = []

    def add_chain(self, chosen: Ints, space: NDArray[np.int32], area: NDArray[np.uint64], columns: SampleColumns, *, with_user: bool) -> None:  # fmt: skip
        """Adds the callchain: the kernel's frames, and the user's if the sample has no stack."""
        owner = np.repeat(np.arange(len(chosen)), columns.chain_words)
        first = np.cumsum(columns.chain_words) - columns.chain_words
        entry = area[np.repeat(columns.chain - first, columns.chain_words) + np.arange(len(owner))]
        is_mark = entry >= _MARKS
        last_mark = np.maximum.accumulate(np.where(is_mark, np.arange(len(entry)), -1))
        has_mark = last_mark >= first[owner]
        mark = np.where(has_mark, entry[last_mark], _USER) if len(entry) else entry
        is_kernel = mark == _KERNEL
        kept = ~is_mark & (is_kernel | (with_user & (mark == _USER)))
        owner, entry, is_kernel = owner[kept], entry[kept], is_kernel[kept]
        self._add(
            chosen[owner],
            np.where(is_kernel, KERNEL_SPACE, space[chosen[owner]]).astype(np.int32),
            entry,
            np.full(len(entry), _NO_SP, np.uint64),
            np.full(len(entry), Method.FP, np.uint8),
        )

    def add_traces(self, chosen: Ints, space: NDArray[np.int32], traces: TraceBatch) -> None:
        owner = chosen[np.repeat(np.arange(len(chosen)), np.diff(traces.offsets))]
        lookup = traces.address - traces.is_return.astype(np.uint64)
        self._add(owner, space[owner], lookup, traces.sp, traces.method)

    def _add(
        self,
        owner: Ints,
        space: NDArray[np.int32],
        lookup: NDArray[np.uint64],
        sp: NDArray[np.uint64],
        method: NDArray[np.uint8],
    ) -> None:
        columns = (self.owner, self.space, self.lookup, self.sp, self.method)
        for column, piece in zip(columns, (owner, space, lookup, sp, method), strict=True):
            column.append(piece)  # type: ignore[attr-defined]


def stacks_of(
    reader: SampleReader, unwinder: SampleUnwinder, locations: CodeLocations, *, join: bool = False
) -> Iterator[SampledStacks]:
    """Yields all samples in order of time, a bounded number at a time.

    join: complete cut stacks from other samples of the same batch.
    """
    for chunk in reader.chunks():
        yield _assemble(reader, unwinder, locations, chunk, join=join)


def _assemble(
    reader: SampleReader, unwinder: SampleUnwinder, locations: CodeLocations, chunk: Chunk, *, join: bool
) -> SampledStacks:
    n = len(chunk.order)
    frames = _Frames()
    end = np.full(n, NOT_CAPTURED, np.uint8)
    period = np.ones(n, np.uint64)
    arch = [""] * n
    for group in chunk.groups:
        period[group.chosen] = group.columns.period
        words = reader.recording.areas[int(chunk.order.area[group.chosen[0]])].words
        frames.add_chain(group.chosen, chunk.space, words, group.columns, with_user=group.batch is None)
        if group.batch is not None:
            traces = unwinder.unwind(group.batch)
            if join:
                traces = join_truncated(traces, _threads(chunk)[group.chosen])
            frames.add_traces(group.chosen, chunk.space, traces)
            end[group.chosen] = traces.end
            for i in group.chosen.tolist():
                arch[i] = group.batch.arch.name
    return _sorted(reader, locations, chunk, frames, period, arch, end)


def _threads(chunk: Chunk) -> Ints:
    """A number for each sample, equal for samples of one thread with the same mappings."""
    columns = [column.astype(np.int64) for column in (chunk.order.pid, chunk.order.tid, chunk.space)]
    return np.unique(np.stack(columns, 1), axis=0, return_inverse=True)[1].reshape(-1)


def _sorted(
    reader: SampleReader,
    locations: CodeLocations,
    chunk: Chunk,
    frames: _Frames,
    period: NDArray[np.uint64],
    arch: list[str],
    end: NDArray[np.uint8],
) -> SampledStacks:
    order = chunk.order
    owner = np.concatenate(frames.owner)
    by_owner = np.argsort(owner, kind="stable")  # frames were added innermost first
    lookup = np.concatenate(frames.lookup)[by_owner]
    names = [event.name for event in reader.recording.events]
    return SampledStacks(
        [
            reader.processes.name_at(t, r)
            for t, r in zip(order.tid.tolist(), order.rank.tolist(), strict=True)
        ],
        order.pid,
        order.tid,
        order.time_ns,
        period,
        [names[i] for i in order.event.tolist()],
        arch,
        np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(order)))]),
        locations.numbers(np.concatenate(frames.space)[by_owner], lookup),
        lookup,
        np.concatenate(frames.sp)[by_owner],
        np.concatenate(frames.method)[by_owner],
        end,
        locations.known,
    )
