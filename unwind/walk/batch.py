"""Many samples at once: in chunks by the compiled engine, and what it cannot step one by one by step.py.

The engine looks up every pc (one hash probe), computes the CFA and reads the return address. It does not read
callee-saved registers where a frame saves them: it tracks their location, and only of registers that some line reads.
Without the engine step.py does all, with the same results, some hundred times slower.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.engine.library import NEEDS_SCALAR, library_path, load
from memleak_android.unwind.maps import AddressSpace
from memleak_android.unwind.trace import Ints, SampleBatch, TraceBatch
from memleak_android.unwind.walk.engine_stepper import Stepper, can_step
from memleak_android.unwind.walk.plan import ModuleSource, Planner
from memleak_android.unwind.walk.scalar import ScalarUnwinder
from memleak_android.unwind.walk.step_lines import StepLines

_CHUNK_SAMPLES = 1 << 15  # bounds memory: about 200 bytes per sample and frame
_SPACES_MAX = 1 << 15  # one PcIndex names that many address spaces in its keys


class _Piece(Protocol):
    """The frames of some samples; depth and end hold one number for each of them."""

    @property
    def samples(self) -> Ints: ...
    @property
    def depth(self) -> Ints: ...
    @property
    def end(self) -> NDArray[np.uint8]: ...
    def write(self, first: Ints, out: TraceBatch) -> None:
        """Copies the frames of each sample to [first, first + depth) of the columns."""


class BatchUnwinder:
    """Unwinds batches over the same address spaces; the lines of known pcs are kept between batches.

    signature_mask: the bits of return addresses that the target's pointer authentication uses (arm64:
    NT_ARM_PAC_MASK); None: those that no address of a space needs.
    frame_pointers: whether code without a file is stepped by frame pointer, which nothing can confirm there.
    jobs: threads; results do not depend on it. Only the compiled engine runs in several at once.
    engine: the compiled engine's shared object; None, or one that cannot be used: the scalar unwinder.
    """

    def __init__(
        self,
        spaces: Sequence[AddressSpace],
        modules: ModuleSource,
        *,
        max_frames: int = 1024,
        signature_mask: int | None = None,
        frame_pointers: bool = True,
        jobs: int = 1,
        engine: Path | None = library_path(),  # noqa: B008 (a constant of this machine)
    ) -> None:
        self._frame_pointers = frame_pointers
        self._signature_mask = signature_mask
        self._spaces = spaces
        self._modules = modules
        self._max_frames = max_frames
        self._jobs = max(jobs, 1)
        self._library = None if engine is None else load(engine)
        self._planner: Planner | None = None
        self._idle: dict[int, list[_Worker]] = {}
        self._lock = threading.Lock()

    def unwind(self, samples: SampleBatch) -> TraceBatch:
        """One trace per sample, in order."""
        if self._planner is None or self._planner.arch != samples.arch:
            self._planner = Planner(
                samples.arch,
                self._spaces,
                self._modules,
                signature_mask=self._signature_mask,
                frame_pointers=self._frame_pointers,
            )
            self._idle = {}
        planner = self._planner
        chunks = list(_chunks(samples, self._jobs))
        if self._jobs == 1 or len(chunks) < 2:
            found = [self._unwind_chunk(samples, chosen, first, planner) for first, chosen in chunks]
        else:
            with ThreadPoolExecutor(min(self._jobs, len(chunks))) as pool:
                found = list(pool.map(lambda c: self._unwind_chunk(samples, c[1], c[0], planner), chunks))
        return _assemble(len(samples), [piece for pieces in found for piece in pieces])

    def _unwind_chunk(self, samples: SampleBatch, chosen: Ints, first: int, planner: Planner) -> list[_Piece]:
        with self._lock:
            idle = self._idle.setdefault(first, [])
            worker = idle.pop() if idle else _Worker(planner, first, self._library)
        try:
            return worker.unwind(samples, chosen, self._max_frames)
        finally:
            with self._lock:
                idle.append(worker)


class _Worker:
    """The state of one thread for one block of address spaces."""

    def __init__(self, planner: Planner, first_space: int, library: ctypes.CDLL | None) -> None:
        self._planner = planner
        self._stepper = None if library is None else Stepper(StepLines(planner, first_space), library)

    def unwind(self, samples: SampleBatch, chosen: Ints, max_frames: int) -> list[_Piece]:
        """The engine's frames, then those of the samples that it left to the scalar unwinder."""
        pieces: list[_Piece] = []
        if self._stepper is not None and can_step(samples):
            stepped = self._stepper.unwind(samples, chosen, max_frames)
            pieces.append(stepped)
            chosen = chosen[stepped.outcome == NEEDS_SCALAR]
        if len(chosen):
            pieces.append(ScalarUnwinder(self._planner, max_frames).unwind(samples, chosen))
        return pieces


def unwind_batch(
    samples: SampleBatch,
    spaces: Sequence[AddressSpace],
    modules: ModuleSource,
    *,
    max_frames: int = 1024,
    jobs: int = 1,
) -> TraceBatch:
    """One trace per sample, in order. samples.space are positions in `spaces`."""
    return BatchUnwinder(spaces, modules, max_frames=max_frames, jobs=jobs).unwind(samples)


def _chunks(samples: SampleBatch, jobs: int) -> Iterator[tuple[int, Ints]]:
    """(first space of its block, sample numbers): bounded counts, one block of address spaces each."""
    size = min(_CHUNK_SAMPLES, max(-(-len(samples) // jobs), 1))
    blocks = samples.space // _SPACES_MAX
    several = len(blocks) and blocks.min() != blocks.max()
    for block in np.unique(blocks).tolist() if several else blocks[:1].tolist():
        members = np.flatnonzero(blocks == block)
        for start in range(0, len(members), size):
            yield block * _SPACES_MAX, members[start : start + size]


def _assemble(n: int, pieces: list[_Piece]) -> TraceBatch:
    """Frames by sample and level, out of pieces whose frames lie in the order in which they were found."""
    depth = np.zeros(n + 1, np.int64)
    end = np.zeros(n, np.uint8)
    for piece in pieces:
        depth[piece.samples + 1] = piece.depth
        end[piece.samples] = piece.end
    offsets = np.cumsum(depth)
    total = int(offsets[-1])
    out = TraceBatch(
        offsets,
        np.empty(total, np.uint64),
        np.empty(total, np.uint64),
        np.ones(total, np.bool_),
        np.empty(total, np.uint8),
        end,
    )
    for piece in pieces:
        piece.write(offsets[piece.samples], out)
    return out
