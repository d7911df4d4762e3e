"""What the lock-step unwinder carries from round to round, and what it hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import SampleBatch, TraceBatch

IN_REGISTER = -1  # place of a register that still holds its captured value
UNKNOWN = -2
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Chunk:
    """Frames of some samples. owner: position in `samples`; level: 0 = innermost; the rest as in TraceBatch."""

    samples: Ints
    owner: Ints
    level: Ints
    address: NDArray[np.uint64]
    sp: NDArray[np.uint64]
    is_return: NDArray[np.bool_]
    method: NDArray[np.uint8]
    end: NDArray[np.uint8]
    needs_scalar: NDArray[np.bool_]

    @property
    def depth(self) -> Ints:
        """Frames of each sample; 0 of those that need the scalar unwinder."""
        depth = np.bincount(self.owner, minlength=len(self.samples))
        depth[self.needs_scalar] = 0
        return depth

    def write(self, first: Ints, out: TraceBatch) -> None:
        """Puts the frames of each sample to [first, first + depth) of the columns."""
        places = first[self.owner] + self.level
        columns: tuple[NDArray[Any], ...] = (self.address, self.sp, self.is_return, self.method)
        into: tuple[NDArray[Any], ...] = (out.address, out.sp, out.is_return, out.method)
        if self.needs_scalar.any():
            kept = np.flatnonzero(~self.needs_scalar[self.owner])
            places = places[kept]
            columns = tuple(column[kept] for column in columns)
        for column, found in zip(into, columns, strict=True):
            column[places] = found


@dataclass(slots=True)
class Live:
    """The samples that still step. sp, length: bytes relative to the slice; word: index of its first word.

    place[k]: for the k-th tracked register the word it was last saved to, IN_REGISTER or UNKNOWN.
    """

    owner: Ints
    pc: NDArray[np.uint64]
    sp: Ints
    is_return: NDArray[np.bool_]
    method: NDArray[np.uint8]
    space_key: NDArray[np.uint64]
    word: Ints
    limit: Ints  # relative offset of the last readable word
    place: list[Ints]

    def keep(self, mask: NDArray[np.bool_]) -> Live:
        chosen = np.flatnonzero(mask)
        return Live(
            self.owner[chosen],
            self.pc[chosen],
            self.sp[chosen],
            self.is_return[chosen],
            self.method[chosen],
            self.space_key[chosen],
            self.word[chosen],
            self.limit[chosen],
            [place[chosen] for place in self.place],
        )


def words_of(samples: SampleBatch) -> NDArray[np.uint64] | NDArray[np.uint32]:
    """The flat stack bytes as the architecture's words, at least one. A copy only where they cannot be seen as such."""
    word_bytes = samples.arch.word_bytes
    data = np.ascontiguousarray(samples.stack_bytes)
    missing = -len(data) % word_bytes or (word_bytes if not len(data) else 0)
    if missing or data.ctypes.data % word_bytes:
        data = np.concatenate([data, np.zeros(missing, np.uint8)])
    return data.view("<u8") if word_bytes == 8 else data.view("<u4")
