"""Runs the compiled engine over chunks of samples, with the same results as step.py."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.engine import library as c
from memleak_android.unwind.trace import Ints, SampleBatch, TraceBatch
from memleak_android.unwind.walk.plan import END_OF_KIND, UNCERTAIN_BY_LINK, UNCERTAIN_BY_STACK
from memleak_android.unwind.walk.step_lines import PC_BITS, StepLines, TrackMore

_FRAMES_PER_SAMPLE = 32  # of a block, which is followed by another when it is full
_BLOCK_FRAMES_MIN = 2 * c.LANES * c.BUFFER_FRAMES
_BLOCK_FRAMES_MAX = 1 << 20
_MAX_FRAMES = (1 << 31) - 1
# struct walk's columns of the samples: their field, and its type there
_COLUMNS = {
    "register_values": ("registers", np.uint64),
    "registers_known": ("known", np.bool_),
    "stack_address": ("stack_address", np.uint64),
    "stack_offset": ("stack_offset", np.int64),
    "stack_length": ("stack_length", np.int64),
    "stack_bytes": ("stack_bytes", np.uint8),
    "space": ("space", np.int32),
    "at_return": ("at_return", np.bool_),
}


def can_step(samples: SampleBatch) -> bool:
    """Whether every slice lies inside stack_bytes, which the engine does not check."""
    offset, length = samples.stack_offset, samples.stack_length
    inside = (offset >= 0) & (length >= 0) & (offset <= len(samples.stack_bytes) - length)
    return bool(inside.all()) and len(samples.arch.callee_saved) <= c.SAVED_MAX


@dataclass(slots=True)
class EngineChunk:
    """The frames of some samples, as blocks of the engine. Samples that it left to step.py have depth 0."""

    samples: Ints
    depth: Ints
    end: NDArray[np.uint8]
    outcome: NDArray[np.uint8]
    _blocks: list[tuple[NDArray[Any], NDArray[Any]]]
    _library: ctypes.CDLL

    def write(self, first: Ints, out: TraceBatch) -> None:
        """Copies the frames of each sample to [first, first + depth) of the columns."""
        columns = (out.address, out.sp, out.is_return, out.method)
        for frames, segments in self._blocks:
            self._library.walk_copy_frames(
                frames.ctypes.data,
                segments.ctypes.data,
                len(segments),
                self.outcome.ctypes.data,
                first.ctypes.data,
                *(column.ctypes.data for column in columns),
            )


class Stepper:
    """Steps chunks over one block of address spaces; the lines are kept for the next chunk."""

    def __init__(self, lines: StepLines, library: ctypes.CDLL) -> None:
        self._lines = lines
        self._library = library

    def unwind(self, samples: SampleBatch, chosen: Ints, max_frames: int) -> EngineChunk:
        """The traces of samples[chosen]. samples: such as can_step() accepts."""
        while True:
            try:
                return _Run(self._lines, self._library, samples, chosen, max_frames).unwind()
            except TrackMore:
                continue  # at most once per callee-saved register in the lines' life


class _Run:
    """One pass over one chunk. It holds every array that the engine has a pointer to."""

    def __init__(
        self, lines: StepLines, library: ctypes.CDLL, samples: SampleBatch, chosen: Ints, max_frames: int
    ) -> None:
        n = len(chosen)
        self._step_lines, self._library, self._chosen = lines, library, chosen
        self._depth = np.zeros(n, np.uint32)
        self._ends = np.zeros(n, np.uint8)
        self._outcome = np.zeros(n, np.uint8)
        if samples.extra_memory is not None:
            has_more = [samples.extra_memory[i] is not None for i in chosen.tolist()]
            self._outcome[has_more] = c.NEEDS_SCALAR
        self._blocks: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._waiting = np.empty(n, c.LANE)
        self._resumed = np.empty(n, c.LANE)
        self._held: dict[str, NDArray[Any]] = {}
        self._walk = c.Walk()
        self._walk.max_frames = min(max_frames, _MAX_FRAMES)
        self._walk.end = n
        self._walk.first_space = lines.first_space
        self._set_arch(samples.arch)
        for name, (field, dtype) in _COLUMNS.items():
            self._point(name, np.ascontiguousarray(getattr(samples, field), dtype))
        self._point("chosen", np.ascontiguousarray(chosen, np.int64))
        self._point("depth", self._depth)
        self._point("ends", self._ends)
        self._point("outcome", self._outcome)
        if samples.arch.signature_mask:
            spaces = (samples.space[chosen] - lines.first_space).astype(np.uint64)
            self._point("signature_masks", lines.signature_masks(spaces))

    def unwind(self) -> EngineChunk:
        walk = self._walk
        while walk.next < walk.end or walk.resumed_count:
            self._point_to_lines()
            self._run_block()
            self._waiting, self._resumed = self._resumed, self._waiting
            walk.resumed_count, walk.waiting_count = walk.waiting_count, 0
            missing = np.unique(self._resumed["missing"][: walk.resumed_count])
            missing = missing[missing != c.NOTHING_MISSING]
            if len(missing):
                self._step_lines.learn(missing)
        depth = np.where(self._outcome == c.DONE, self._depth, 0).astype(np.int64)
        return EngineChunk(self._chosen, depth, self._ends, self._outcome, self._blocks, self._library)

    def _run_block(self) -> None:
        walk = self._walk
        left = walk.end - walk.next + walk.resumed_count
        size = _BLOCK_FRAMES_MIN + min(left * _FRAMES_PER_SAMPLE, _BLOCK_FRAMES_MAX)
        frames, segments = np.empty(size, c.FRAME), np.empty(size // 8 + left, c.SEGMENT)
        self._point("frames", frames)
        self._point("segments", segments)
        self._point("waiting", self._waiting)
        self._point("resumed", self._resumed)
        walk.frame_capacity, walk.segment_capacity = len(frames), len(segments)
        walk.frame_count = walk.segment_count = 0
        self._library.walk_run(ctypes.byref(walk))
        if walk.segment_count:
            self._blocks.append((frames[: walk.frame_count], segments[: walk.segment_count]))

    def _point(self, name: str, array: NDArray[Any]) -> None:
        self._held[name] = array
        setattr(self._walk, name, array.ctypes.data)

    def _set_arch(self, arch: Arch) -> None:
        walk = self._walk
        walk.word_mask, walk.word_bytes = arch.word_mask, arch.word_bytes
        uncertain = UNCERTAIN_BY_STACK if arch.link is None else UNCERTAIN_BY_LINK
        walk.uncertain_kinds = sum(1 << kind for kind in uncertain)
        walk.end_of_kind = sum(end << 4 * kind for kind, end in END_OF_KIND.items())
        walk.tag_bits = 64 - arch.address_bits if arch.word_bytes == 8 else 0
        walk.registers, walk.pc, walk.sp = len(arch.registers), arch.pc, arch.sp
        walk.link = -1 if arch.link is None else arch.link
        walk.is_signed = arch.signature_mask != 0
        walk.fp_saved, _, walk.fp_span = arch.frame_record
        walk.fp_position, walk.pc_bits = self._step_lines.rules.fp_position, PC_BITS
        walk.saved_registers = len(arch.callee_saved)
        walk.saved_slot[: len(arch.callee_saved)] = arch.callee_saved

    def _point_to_lines(self) -> None:
        walk, index = self._walk, self._step_lines.index
        self._point("lines", self._step_lines.rules.lines)
        self._point("interpreters", self._step_lines.rules.interpreters)
        self._point("keys", index.keys)
        self._point("values", index.values)
        walk.key_mask, walk.key_shift = len(index.keys) - 1, index.shift
        walk.tracked = len(self._step_lines.tracked)
        walk.tracked_position[: walk.tracked] = self._step_lines.tracked
