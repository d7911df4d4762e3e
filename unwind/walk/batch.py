"""Many samples at once: in chunks by the compiled engine, and what it cannot step one by one by step.py.

The engine looks up every pc (one hash probe), computes the CFA and reads the return address. It does not read
callee-saved registers where a frame saves them: it tracks their location, and only of registers that some line reads.
Without the engine step.py does all, with the same results, some hundred times slower.
"""

import ctypes
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.engine.library import NEEDS_SCALAR, library_path, load
from memleak_android.unwind.maps import AddressSpace
from memleak_android.unwind.trace import Ints, SampleBatch, TraceBatch, TraceEnd
from memleak_android.unwind.walk.engine_stepper import EngineChunk, Stepper, can_step
from memleak_android.unwind.walk.plan import ModuleSource, Planner
from memleak_android.unwind.walk.step import StepFrame, unwind_sample
from memleak_android.unwind.walk.step_lines import StepLines


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


def unwind_one_by_one(samples: SampleBatch, chosen: Ints, planner: Planner, max_frames: int) -> ScalarTraces:
    """The traces of samples[chosen]. A step costs 20 us, so comparing whole slices pays."""
    known: dict[tuple[object, ...], tuple[list[StepFrame], TraceEnd]] = {}
    traces = []
    for i in chosen.tolist():
        start, length = int(samples.stack_offset[i]), int(samples.stack_length[i])
        identity = (
            int(samples.space[i]),
            bool(samples.at_return[i]),
            int(samples.stack_address[i]),
            samples.registers[i].tobytes(),
            samples.known[i].tobytes(),
            samples.stack_bytes[start : start + length].tobytes(),
            samples.extra_memory[i] if samples.extra_memory is not None else None,
        )
        if identity not in known:
            known[identity] = unwind_sample(samples, i, planner, max_frames)
        traces.append(known[identity])
    return ScalarTraces(
        chosen,
        np.array([len(frames) for frames, _ in traces], np.int64),
        np.array([end for _, end in traces], np.uint8),
        [frame for frames, _ in traces for frame in frames],
    )


_CHUNK_SAMPLES = 1 << 15  # bounds memory: about 200 bytes per sample and frame
_SPACES_MAX = 1 << 15  # one PcIndex names that many address spaces in its keys


_Piece = EngineChunk | ScalarTraces


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
        self._planners: dict[Arch, Planner] = {}
        self._idle: defaultdict[tuple[Arch, int], list[Stepper]] = defaultdict(list)
        self._lock = threading.Lock()

    def unwind(self, samples: SampleBatch) -> TraceBatch:
        """One trace per sample, in order."""
        planner = self._planner_of(samples.arch)
        is_steppable = can_step(samples)

        def unwind_chunk(chunk: tuple[int, Ints]) -> list[_Piece]:
            """The engine's frames, then those of the samples that it left to the scalar unwinder."""
            first, chosen = chunk
            pieces: list[_Piece] = []
            if self._library is not None and is_steppable:
                with self._stepper(planner, first, self._library) as stepper:
                    stepped = stepper.unwind(samples, chosen, self._max_frames)
                pieces.append(stepped)
                chosen = chosen[stepped.outcome == NEEDS_SCALAR]
            if len(chosen):
                pieces.append(unwind_one_by_one(samples, chosen, planner, self._max_frames))
            return pieces

        chunks = list(_chunks(samples.space, self._jobs))
        if self._jobs == 1 or len(chunks) < 2:
            found = list(map(unwind_chunk, chunks))
        else:
            with ThreadPoolExecutor(min(self._jobs, len(chunks))) as pool:
                found = list(pool.map(unwind_chunk, chunks))
        return _assemble(len(samples), [piece for pieces in found for piece in pieces])

    def _planner_of(self, arch: Arch) -> Planner:
        if arch not in self._planners:
            self._planners[arch] = Planner(
                arch,
                self._spaces,
                self._modules,
                signature_mask=self._signature_mask,
                frame_pointers=self._frame_pointers,
            )
        return self._planners[arch]

    @contextmanager
    def _stepper(self, planner: Planner, first_space: int, library: ctypes.CDLL) -> Iterator[Stepper]:
        """A stepper over one block of address spaces, which no other thread uses meanwhile."""
        idle = self._idle[planner.arch, first_space]
        with self._lock:
            stepper = idle.pop() if idle else Stepper(StepLines(planner, first_space), library)
        try:
            yield stepper
        finally:
            with self._lock:
                idle.append(stepper)


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


def _chunks(space: NDArray[np.int32], jobs: int) -> Iterator[tuple[int, Ints]]:
    """(first space of its block, sample numbers): bounded counts, one block of address spaces each."""
    size = min(_CHUNK_SAMPLES, max(-(-len(space) // jobs), 1))
    blocks = space // _SPACES_MAX
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
