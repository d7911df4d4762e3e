"""Unwound stacks by number. Each distinct frame is held once: a million stacks have few distinct frames."""

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import FRAME_ROW, TRACE_ROW, Rows
from memleak_android.host.wire.packed import distinct, ranges
from memleak_android.host.wire.payloads import TraceChunk

_TRACES_PER_CHUNK = 4096
_FRAMES_PER_CHUNK = 200_000
_TRACES_AT_ONCE = 1 << 16
_IDENTITY = ("address", "vaddr", "module", "method", "is_return")  # frames with equal ones are the same
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)

Numbers = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


class _DistinctFrames:
    """Distinct frames (FRAME_ROW, without sp) by number. A hash collision costs a second number, never a wrong frame."""

    def __init__(self) -> None:
        self.rows: Rows = np.empty(0, FRAME_ROW)
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)  # sorted
        self._numbers: Numbers = np.empty(0, np.int64)  # by hash

    def intern(self, frames: Rows) -> NDArray[np.uint32]:
        """The number of each frame."""
        hashes, first, inverse = np.unique(_hash(frames), return_index=True, return_inverse=True)
        at = np.searchsorted(self._hashes, hashes)
        is_known = at < len(self._hashes)
        is_known[is_known] = self._hashes[at[is_known]] == hashes[is_known]
        numbers = np.empty(len(hashes), np.int64)
        numbers[is_known] = self._numbers[at[is_known]]
        numbers[~is_known] = self._add(frames[first[~is_known]])
        self._hashes = np.insert(self._hashes, at[~is_known], hashes[~is_known])
        self._numbers = np.insert(self._numbers, at[~is_known], numbers[~is_known])
        result = numbers[inverse]
        known = self.rows[result]
        differs = np.logical_or.reduce([frames[name] != known[name] for name in _IDENTITY])
        result[differs] = self._add(frames[differs])
        return result.astype(np.uint32)

    def _add(self, frames: Rows) -> Numbers:
        begin = len(self.rows)
        new = frames.copy()
        new["sp"] = 0
        self.rows = np.concatenate([self.rows, new])
        return np.arange(begin, len(self.rows))


def _hash(frames: Rows) -> NDArray[np.uint64]:
    total = np.zeros(len(frames), np.uint64)
    for name, odd in zip(_IDENTITY, _ODD, strict=True):
        total = (total ^ frames[name].astype(np.uint64)) * np.uint64(odd)
        total ^= total >> np.uint64(29)
    return total


class StackTable:
    """Traces (TRACE_ROW) with their frames, and which of them are the same stack.

    Two traces are the same stack if they have the same function, the same code in the same modules and the same end,
    whatever the addresses. Stacks are numbered in the order of their first traces.
    keeps_sp: frames keep their stack pointers; else these are 0.
    """

    def __init__(self, keeps_sp: bool = True) -> None:
        self._keeps_sp = keeps_sp
        self._traces: list[Rows] = [np.empty(0, TRACE_ROW)]
        self._distinct = _DistinctFrames()
        self._number_parts: list[NDArray[np.uint32]] = [np.empty(0, np.uint32)]  # by frame
        self._sp_parts: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
        self._length = 0
        self._bounds: Numbers = np.zeros(1, np.int64)  # of each trace's frames
        self._stacks: tuple[Numbers, Numbers] | None = None

    def __len__(self) -> int:
        return self._length

    def append(self, traces: Rows, frames: Rows) -> None:
        self._traces.append(traces)
        self._number_parts.append(self._distinct.intern(frames))
        if self._keeps_sp:
            self._sp_parts.append(frames["sp"].copy())
        self._length += len(traces)
        self._stacks = None

    @property
    def traces(self) -> Rows:
        return _joined(self._traces)

    @property
    def distinct_frames(self) -> Rows:
        """FRAME_ROWs, without sp."""
        return self._distinct.rows

    @property
    def number_of_frame(self) -> NDArray[np.uint32]:
        """Indexes into distinct_frames, for the frames of all traces in order."""
        return _joined(self._number_parts)

    @property
    def bounds(self) -> Numbers:
        """(n + 1,) index of the first frame of each trace, and the number of all frames."""
        if len(self._bounds) != self._length + 1:
            self._bounds = np.concatenate([[0], np.cumsum(self.traces["n_frames"].astype(np.int64))])
        return self._bounds

    @property
    def stack_of_trace(self) -> Numbers:
        return self._numbered()[0]

    def stacks_of(self, traces: Numbers) -> Numbers:
        """The stack of each of these traces; negative numbers stay."""
        if not len(self):
            return traces
        return np.where(traces >= 0, self.stack_of_trace[traces], traces)

    @property
    def first_trace(self) -> Numbers:
        """By stack: its first trace."""
        return self._numbered()[1]

    def frame_numbers(self, trace: int) -> NDArray[np.uint32]:
        """Innermost first."""
        return self.number_of_frame[self.bounds[trace] : self.bounds[trace + 1]]

    def frames_used(self, traces: Numbers) -> NDArray[np.bool_]:
        """By distinct frame: it is part of one of these traces."""
        used = np.zeros(len(self.distinct_frames), bool)
        begins, ends = self.bounds[traces], self.bounds[traces + 1]
        for first in range(0, len(traces), _TRACES_AT_ONCE):
            part = slice(first, first + _TRACES_AT_ONCE)
            used[self.number_of_frame[ranges(begins[part], ends[part] - begins[part])]] = True
        return used

    def use_one_of(self, traces: Numbers, frames: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """By trace: one of these distinct frames is part of it."""
        found = np.zeros(len(traces), bool)
        for first in range(0, len(traces) if frames.any() else 0, _TRACES_AT_ONCE):
            part = traces[first : first + _TRACES_AT_ONCE]
            begins, lengths = self.bounds[part], self.bounds[part + 1] - self.bounds[part]
            is_one = frames[self.number_of_frame[ranges(begins, lengths)]]
            found[first + np.repeat(np.arange(len(part)), lengths)[is_one]] = True
        return found

    def frames_of(self, trace: int) -> Rows:
        return self._frames(int(self.bounds[trace]), int(self.bounds[trace + 1]))

    def _frames(self, first: int, end: int) -> Rows:
        frames = self.distinct_frames[self.number_of_frame[first:end]]
        if self._keeps_sp:
            frames["sp"] = _joined(self._sp_parts)[first:end]
        return frames

    def chunks(self) -> Iterable[TraceChunk]:
        """The table in parts that fit the blocks of a recording; at least one."""
        first, bounds = 0, self.bounds
        while True:
            end = min(first + _TRACES_PER_CHUNK, len(self))
            fitting = int(np.searchsorted(bounds, int(bounds[first]) + _FRAMES_PER_CHUNK, side="right")) - 1
            end = min(end, max(fitting, first + 1)) if len(self) else 0
            frames = self._frames(int(bounds[first]), int(bounds[end]))
            yield TraceChunk(first, end == len(self), self.traces[first:end], frames)
            if end == len(self):
                return
            first = end

    def _numbered(self) -> tuple[Numbers, Numbers]:
        """(stack of each trace, first trace of each stack)."""
        if self._stacks is None:
            classes = _stack_classes(
                self.traces, self.bounds, self.number_of_frame, _code_numbers(self.distinct_frames)
            )
            _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
            order = np.argsort(first)
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            self._stacks = rank[inverse], first[order]
        return self._stacks


def _joined(parts: list[NDArray[Scalar]]) -> NDArray[Scalar]:
    if len(parts) != 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]


def _code_numbers(frames: Rows) -> Numbers:
    """For each distinct frame a number of its module and vaddr, whatever its address."""
    return distinct(frames["module"], frames["vaddr"])[1]


def _stack_classes(traces: Rows, bounds: Numbers, numbers: NDArray[np.uint32], codes: Numbers) -> Numbers:
    """A number by trace, equal where the stacks are equal.

    Traces are compared frame by frame, from the innermost on; a trace that differs from all others is dropped.
    """
    n_frames = traces["n_frames"].astype(np.int64)
    classes = np.zeros(len(traces), np.int64)
    for head in (n_frames, traces["function"], traces["end"]):
        classes = _refined(classes, np.unique(head, return_inverse=True)[1])
    active, part, depth = np.arange(len(traces)), classes, 0
    n_classes = int(classes.max(initial=-1)) + 1
    while True:
        open_ = (np.bincount(part)[part] > 1) & (n_frames[active] > depth)
        active, part = active[open_], part[open_]
        if not len(active):
            return classes
        part = _refined(part, codes[numbers[bounds[active] + depth]])
        classes[active] = part + n_classes
        n_classes += int(part.max()) + 1
        depth += 1


def _refined(classes: Numbers, by: Numbers) -> Numbers:
    """Numbers of the distinct pairs."""
    pairs = classes * (int(by.max(initial=0)) + 1) + by
    return np.asarray(np.unique(pairs, return_inverse=True)[1])
