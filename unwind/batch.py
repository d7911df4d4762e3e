"""The lock-step unwinder: all samples of a chunk step together, one frame per round.

A round looks up every pc (one hash probe), computes every CFA, reads every return address. Callee-saved
registers are not read when a frame saves them: only *where* they lie is carried along, and only for the
registers that some CFA of this program is based on. What does not fit columns goes to step.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.lockstep import Lockstep
from memleak_android.unwind.lockstep_state import Chunk
from memleak_android.unwind.maps import AddressSpace
from memleak_android.unwind.plan import ModuleSource, Planner
from memleak_android.unwind.step import StepFrame, unwind_sample
from memleak_android.unwind.trace import SampleBatch, TraceBatch

_CHUNK_SAMPLES = 1 << 15  # bounds memory: about 200 bytes per sample and frame
_SPACES_MAX = 1 << 15  # one PcIndex names that many address spaces in its keys


class BatchUnwinder:
    """Unwinds batches over the same address spaces; what it learnt about a pc is kept between batches.

    signature_mask: the bits of return addresses that the target's pointer authentication uses (arm64:
    NT_ARM_PAC_MASK); None: those that no address of a space needs.
    frame_pointers: whether code that no file shows is stepped by frame pointer, which nothing can confirm there.
    """

    def __init__(
        self,
        spaces: Sequence[AddressSpace],
        modules: ModuleSource,
        *,
        max_frames: int = 1024,
        signature_mask: int | None = None,
        frame_pointers: bool = True,
    ) -> None:
        self._frame_pointers = frame_pointers
        self._signature_mask = signature_mask
        self._spaces = spaces
        self._modules = modules
        self._max_frames = max_frames
        self._planner: Planner | None = None
        self._locksteps: dict[int, Lockstep] = {}

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
            self._locksteps = {}
        planner = self._planner
        found = [self._unwind_chunk(samples, chosen, first, planner) for first, chosen in _chunks(samples)]
        return _assemble(len(samples), found)

    def _unwind_chunk(
        self, samples: SampleBatch, chosen: NDArray[np.int64], first: int, planner: Planner
    ) -> Chunk:
        lockstep = self._locksteps.get(first)
        if lockstep is None:
            lockstep = self._locksteps[first] = Lockstep(planner, first)
        chunk = lockstep.unwind(samples, chosen, self._max_frames)
        scalar = np.flatnonzero(chunk.needs_scalar)
        if len(scalar):
            _replace_scalar(chunk, scalar, samples, planner, self._max_frames)
        return chunk


def unwind_batch(
    samples: SampleBatch, spaces: Sequence[AddressSpace], modules: ModuleSource, *, max_frames: int = 1024
) -> TraceBatch:
    """One trace per sample, in order. samples.space are positions in `spaces`."""
    return BatchUnwinder(spaces, modules, max_frames=max_frames).unwind(samples)


def _chunks(samples: SampleBatch) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(first space of its block, sample numbers): bounded counts, one block of address spaces each."""
    blocks = samples.space // _SPACES_MAX
    for block in np.unique(blocks).tolist():
        members = np.flatnonzero(blocks == block)
        for start in range(0, len(members), _CHUNK_SAMPLES):
            yield block * _SPACES_MAX, members[start : start + _CHUNK_SAMPLES]


def _replace_scalar(
    chunk: Chunk, scalar: NDArray[np.int64], samples: SampleBatch, planner: Planner, max_frames: int
) -> None:
    """Appends the frames that step.py finds and takes the started ones of these samples out."""
    keep = ~chunk.needs_scalar[chunk.owner]
    frames: list[StepFrame] = []
    owners: list[int] = []
    levels: list[int] = []
    for i in scalar.tolist():
        found, end = unwind_sample(samples, int(chunk.samples[i]), planner, max_frames)
        frames += found
        owners += [i] * len(found)
        levels += range(len(found))
        chunk.end[i] = end
    columns = zip(*frames, strict=True) if frames else ((), (), (), ())
    address, sp, is_return, method = columns
    chunk.owner = np.concatenate([chunk.owner[keep], np.array(owners, np.int64)])
    chunk.level = np.concatenate([chunk.level[keep], np.array(levels, np.int64)])
    chunk.address = np.concatenate([chunk.address[keep], np.array(address, np.uint64)])
    chunk.sp = np.concatenate([chunk.sp[keep], np.array(sp, np.uint64)])
    chunk.is_return = np.concatenate([chunk.is_return[keep], np.array(is_return, np.bool_)])
    chunk.method = np.concatenate([chunk.method[keep], np.array(method, np.uint8)])


@dataclass(slots=True)
class _Columns:
    address: NDArray[np.uint64]
    sp: NDArray[np.uint64]
    is_return: NDArray[np.bool_]
    method: NDArray[np.uint8]


def _assemble(n: int, chunks: list[Chunk]) -> TraceBatch:
    """Frames by sample and level, out of chunks whose frames lie in the order in which they were found."""
    depth = np.zeros(n + 1, np.int64)
    end = np.zeros(n, np.uint8)
    for chunk in chunks:
        depth[chunk.samples + 1] = np.bincount(chunk.owner, minlength=len(chunk.samples))
        end[chunk.samples] = chunk.end
    offsets = np.cumsum(depth)
    total = int(offsets[-1])
    out = _Columns(
        np.empty(total, np.uint64),
        np.empty(total, np.uint64),
        np.empty(total, np.bool_),
        np.empty(total, np.uint8),
    )
    for chunk in chunks:
        places = offsets[chunk.samples[chunk.owner]] + chunk.level
        out.address[places] = chunk.address
        out.sp[places] = chunk.sp
        out.is_return[places] = chunk.is_return
        out.method[places] = chunk.method
    return TraceBatch(offsets, out.address, out.sp, out.is_return, out.method, end)
