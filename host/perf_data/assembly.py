"""Joins kernel frames, unwound frames and names of a chunk into SampledStacks."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.perf_data.code_locations import KERNEL_SPACE, CodeLocations
from memleak_android.host.perf_data.layout import Ints
from memleak_android.host.perf_data.sampled_stacks import NOT_CAPTURED, SampledStacks
from memleak_android.host.perf_data.stacks import Chunk, Group, SampleReader
from memleak_android.host.wire.packed import distinct
from memleak_android.unwind.trace import Method, TraceBatch
from memleak_android.unwind.walk.batch import BatchUnwinder
from memleak_android.unwind.walk.joining import join_truncated

_MARKS = np.uint64((1 << 64) - 4095)  # PERF_CONTEXT_MAX: entries from here on mark whose frames follow
_KERNEL, _USER = np.uint64((1 << 64) - 128), np.uint64((1 << 64) - 512)


# owner: the sample's index in the chunk
_FRAME = np.dtype([("owner", "<i8"), ("space", "<i4"), ("lookup", "<u8"), ("sp", "<u8"), ("method", "u1")])


def _chain(chunk: Chunk, group: Group, area: NDArray[np.uint64]) -> NDArray[np.void]:
    """Frames of the callchain: the kernel's, and the user's if the sample has no stack."""
    chosen, columns = group.chosen, group.columns
    owner = np.repeat(np.arange(len(chosen)), columns.chain_words)
    first = np.cumsum(columns.chain_words) - columns.chain_words
    entry = area[np.repeat(columns.chain - first, columns.chain_words) + np.arange(len(owner))]
    is_mark = entry >= _MARKS
    last_mark = np.maximum.accumulate(np.where(is_mark, np.arange(len(entry)), -1))
    has_mark = last_mark >= first[owner]
    mark = np.where(has_mark, entry[last_mark], _USER) if len(entry) else entry
    is_kernel = mark == _KERNEL
    kept = ~is_mark & (is_kernel | ((group.batch is None) & (mark == _USER)))
    frames = np.zeros(int(kept.sum()), _FRAME)
    frames["owner"], frames["lookup"] = chosen[owner[kept]], entry[kept]
    frames["space"] = np.where(is_kernel[kept], KERNEL_SPACE, chunk.space[frames["owner"]])
    frames["method"] = Method.FP
    return frames


def _unwound(chunk: Chunk, chosen: Ints, traces: TraceBatch) -> NDArray[np.void]:
    frames = np.empty(len(traces.address), _FRAME)
    frames["owner"] = chosen[np.repeat(np.arange(len(chosen)), np.diff(traces.offsets))]
    frames["space"], frames["sp"], frames["method"] = chunk.space[frames["owner"]], traces.sp, traces.method
    frames["lookup"] = traces.address - traces.is_return.astype(np.uint64)
    return frames


def stacks_of(
    reader: SampleReader, unwinder: BatchUnwinder, locations: CodeLocations, *, join: bool = False
) -> Iterator[SampledStacks]:
    """Yields all samples in order of time, a bounded number at a time.

    join: complete cut stacks from other samples of the same batch.
    """
    for chunk in reader.chunks():
        yield _assemble(reader, unwinder, locations, chunk, join=join)


def _assemble(
    reader: SampleReader, unwinder: BatchUnwinder, locations: CodeLocations, chunk: Chunk, *, join: bool
) -> SampledStacks:
    n = len(chunk.order)
    frames = [np.empty(0, _FRAME)]
    end = np.full(n, NOT_CAPTURED, np.uint8)
    period = np.ones(n, np.uint64)
    arch = [""] * n
    for group in chunk.groups:
        period[group.chosen] = group.columns.period
        words = reader.recording.areas[int(chunk.order.area[group.chosen[0]])].words
        frames.append(_chain(chunk, group, words))
        if group.batch is not None:
            traces = unwinder.unwind(group.batch)
            if join:
                traces = join_truncated(traces, _threads(chunk)[group.chosen])
            frames.append(_unwound(chunk, group.chosen, traces))
            end[group.chosen] = traces.end
            for i in group.chosen.tolist():
                arch[i] = group.batch.arch.name
    return _sorted(reader, locations, chunk, np.concatenate(frames), period, arch, end)


def _threads(chunk: Chunk) -> Ints:
    """A number for each sample, equal for samples of one thread with the same mappings."""
    return distinct(chunk.order.pid, chunk.order.tid, chunk.space)[1]


def _sorted(
    reader: SampleReader,
    locations: CodeLocations,
    chunk: Chunk,
    frames: NDArray[np.void],
    period: NDArray[np.uint64],
    arch: list[str],
    end: NDArray[np.uint8],
) -> SampledStacks:
    order = chunk.order
    frames = frames[np.argsort(frames["owner"], kind="stable")]  # they were added innermost first
    lookup = frames["lookup"].copy()
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
        np.concatenate([[0], np.cumsum(np.bincount(frames["owner"], minlength=len(order)))]),
        locations.numbers(frames["space"], lookup),
        lookup,
        frames["sp"].copy(),
        frames["method"].copy(),
        end,
        locations.known,
    )
