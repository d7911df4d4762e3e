"""Unwound stacks by number, as columns: what is kept of evidence once its bytes are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.address_spaces import ProcessSpace
from memleak_android.host.modules import ModuleFile, ModuleFiles
from memleak_android.host.payloads import TraceChunk
from memleak_android.host.wire import FRAME_ROW, NO_MODULE, TRACE_ROW, Rows
from memleak_android.unwind.trace import TraceBatch

_TRACES_PER_CHUNK = 4096
_FRAMES_PER_CHUNK = 200_000


class StackTable:
    """Traces (TRACE_ROW) with their frames (FRAME_ROW), and which of them are the same stack.

    Two traces are one stack when they name the same function, the same places in the same modules and end alike,
    whatever the addresses were.
    """

    def __init__(self) -> None:
        self.traces: Rows = np.empty(0, TRACE_ROW)
        self.frames: Rows = np.empty(0, FRAME_ROW)
        self.stack_of_trace: NDArray[np.int64] = np.empty(0, np.int64)
        self.first_trace: list[int] = []  # by stack: a trace of it
        self._first_frame: NDArray[np.int64] = np.zeros(1, np.int64)
        self._stacks: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.traces)

    def append(self, traces: Rows, frames: Rows) -> None:
        begin = len(self.traces)
        self.traces = np.concatenate([self.traces, traces])
        self.frames = np.concatenate([self.frames, frames])
        ends = self._first_frame[-1] + np.cumsum(traces["n_frames"].astype(np.int64))
        self._first_frame = np.concatenate([self._first_frame, ends])
        numbers = [self._number(trace) for trace in range(begin, len(self.traces))]
        self.stack_of_trace = np.concatenate([self.stack_of_trace, np.array(numbers, np.int64)])

    def frames_of(self, trace: int) -> Rows:
        return self.frames[self._first_frame[trace] : self._first_frame[trace + 1]]

    def chunks(self) -> Iterable[TraceChunk]:
        """The table as blocks of a recording can take it; at least one."""
        first = 0
        while True:
            end = min(first + _TRACES_PER_CHUNK, len(self))
            limit = int(self._first_frame[first]) + _FRAMES_PER_CHUNK
            fitting = int(np.searchsorted(self._first_frame, limit, side="right")) - 1
            end = min(end, max(fitting, first + 1)) if len(self) else 0
            frames = self.frames[self._first_frame[first] : self._first_frame[end]]
            yield TraceChunk(first, end == len(self), self.traces[first:end], frames)
            if end == len(self):
                return
            first = end

    def _number(self, trace: int) -> int:
        row, frames = self.traces[trace], self.frames_of(trace)
        identity = b"".join(
            (
                int(row["function"]).to_bytes(4, "little"),
                int(row["end"]).to_bytes(4, "little"),
                frames["vaddr"].tobytes(),
                frames["module"].tobytes(),
            )
        )
        number = self._stacks.setdefault(identity, len(self.first_trace))
        if number == len(self.first_trace):
            self.first_trace.append(trace)
        return number


def trace_rows(evidence: Rows, batch: TraceBatch) -> Rows:
    """TRACE_ROWs of traces that were unwound from `evidence` (EVIDENCE)."""
    rows = np.empty(len(batch), TRACE_ROW)
    for name in ("sequence", "key", "pid", "function"):
        rows[name] = evidence[name]
    rows["n_frames"] = np.diff(batch.offsets)
    rows["end"] = batch.end
    return rows


def frame_rows(
    batch: TraceBatch, space: NDArray[np.int32], spaces: Sequence[ProcessSpace], files: ModuleFiles
) -> Rows:
    """FRAME_ROWs of a batch; each distinct address of a space is looked up once. space: (n,) of the traces."""
    rows = np.empty(len(batch.address), FRAME_ROW)
    rows["address"], rows["sp"] = batch.address, batch.sp
    rows["method"], rows["is_return"] = batch.method, batch.is_return
    place = np.empty(len(rows), [("space", "<i8"), ("address", "<u8"), ("is_return", "<u8")])
    place["space"] = np.repeat(space, np.diff(batch.offsets))
    place["address"], place["is_return"] = batch.address, batch.is_return
    distinct, inverse = np.unique(place, return_inverse=True)
    found = np.empty((len(distinct), 2), np.uint64)
    for i, (number, address, is_return) in enumerate(distinct.tolist()):
        found[i] = _locate(spaces[number], address, is_return, files)
    rows["module"], rows["vaddr"] = found[inverse, 0], found[inverse, 1]
    return rows


def _locate(space: ProcessSpace, address: int, is_return: int, files: ModuleFiles) -> tuple[int, int]:
    """Module number and vaddr. A return address belongs to where its call is: it may lie just behind the module."""
    mapping = space.find(address - is_return)
    number = files.number(space.pid, mapping) if mapping else None
    if mapping is None or number is None:
        return NO_MODULE, address
    return number, files.files[number].vaddr_of(mapping, address)


def used_modules(table: StackTable, files: Sequence[ModuleFile]) -> list[int]:
    """Numbers of the modules that frames lie in."""
    numbers = np.unique(table.frames["module"])
    return [n for n in numbers.tolist() if n < len(files)]
