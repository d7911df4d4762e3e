"""What the lock-step unwinder carries from round to round, and what it hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import Method, SampleBatch, TraceBatch

IN_REGISTER = -1  # place of a register that still holds its captured value
UNKNOWN = -2
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]


class Level(NamedTuple):
    """Frames that one round found. sp: a position in the words; owner: as in Chunk."""

    owner: Ints
    pc: NDArray[np.uint64]
    sp: Ints
    method: NDArray[np.uint8]


@dataclass(slots=True)
class Live:
    """The samples that still step. sp, limit: positions in the words; limit: of the last readable one.

    place[k]: for the k-th tracked register the word it was last saved to, IN_REGISTER or UNKNOWN.
    """

    owner: Ints
    pc: NDArray[np.uint64]
    sp: Ints
    method: NDArray[np.uint8]
    space_key: NDArray[np.uint64]
    limit: Ints
    place: list[Ints]

    def keep(self, mask: NDArray[np.bool_]) -> Live:
        chosen = mask.nonzero()[0]
        return Live(
            self.owner.take(chosen),
            self.pc.take(chosen),
            self.sp.take(chosen),
            self.method.take(chosen),
            self.space_key.take(chosen),
            self.limit.take(chosen),
            [place.take(chosen) for place in self.place],
        )


class FoundFrames:
    """The frames of n samples, round by round, and between them those of methods that an interpreter ran."""

    def __init__(self, n: int) -> None:
        self._levels: list[Level] = []
        self._added = np.zeros(n, np.int64)  # interpreter frames so far
        self._added_before: list[Ints | None] = []  # by level; None: none at all
        self._dex: list[Level] = []
        self._dex_numbers: list[Ints] = []

    @property
    def rounds(self) -> int:
        return len(self._levels)

    def add(self, live: Live) -> None:
        self._added_before.append(self._added[live.owner] if self._dex else None)
        self._levels.append(Level(live.owner, live.pc, live.sp, live.method))

    def add_bytecode(self, owner: Ints, pc: NDArray[np.uint64], sp: Ints) -> None:
        """Above the frames of the round that was added last."""
        self._dex.append(Level(owner, pc, sp, np.full(len(owner), Method.DEX, np.uint8)))
        self._dex_numbers.append(len(self._levels) + self._added[owner])
        self._added[owner] += 1

    def exceeds(self, max_frames: int) -> NDArray[np.bool_]:
        """Which samples have too many frames because of interpreter frames."""
        if not self._dex:
            return np.zeros(len(self._added), np.bool_)
        frames = np.bincount(np.concatenate([x.owner for x in self._levels]), minlength=len(self._added))
        return (self._added > 0) & (frames + self._added > max_frames)

    def frames(
        self, shift: int, offset: Ints, is_return: Bools
    ) -> tuple[Ints, Ints, Words, Words, Bytes, Ints, Bools]:
        """The columns of a Chunk from `owner` to `is_return`.

        A place's address is (place << shift) + offset of its sample. is_return: of the innermost frames, by sample.
        """
        none = np.empty(0, np.int64)
        empty = Level(none, none.view(np.uint64), none, none.astype(np.uint8))
        levels = [empty, *self._levels, *self._dex]
        owner, pc, sp, method = (np.concatenate(columns) for columns in zip(*levels, strict=True))
        first = len(self._levels[0].owner) if self._levels else 0
        n_dex = sum(len(level.owner) for level in self._dex)
        apart = np.concatenate([np.arange(first), np.arange(len(owner) - n_dex, len(owner))])
        of_apart = np.concatenate([is_return[owner[:first]], np.zeros(n_dex, np.bool_)])
        sp <<= shift
        sp += offset.take(owner)
        return owner, self._numbers(), pc, sp.view(np.uint64), method, apart, of_apart

    def _numbers(self) -> Ints:
        """Of all frames: the round that found them, and the interpreter frames before."""
        counts = [len(level.owner) for level in self._levels]
        numbers = np.repeat(np.arange(len(counts)), counts)
        if not self._dex:
            return numbers
        before = [
            np.zeros(n, np.int64) if added is None else added
            for n, added in zip(counts, self._added_before, strict=True)
        ]
        return np.concatenate([numbers + np.concatenate(before), *self._dex_numbers])


@dataclass(slots=True)
class Chunk:
    """Frames of some samples. owner: position in `samples`; level: 0 = innermost; the rest as in TraceBatch.

    looked_up_here: which of them are not return addresses, or may not be; is_return: of those.
    """

    samples: Ints
    owner: Ints
    level: Ints
    address: NDArray[np.uint64]
    sp: NDArray[np.uint64]
    method: NDArray[np.uint8]
    looked_up_here: Ints
    is_return: NDArray[np.bool_]
    end: NDArray[np.uint8]
    needs_scalar: NDArray[np.bool_]

    @property
    def depth(self) -> Ints:
        """Frames of each sample; 0 of those that need the scalar unwinder."""
        depth = np.bincount(self.owner, minlength=len(self.samples))
        depth[self.needs_scalar] = 0
        return depth

    def write(self, first: Ints, out: TraceBatch) -> None:
        """Puts the frames of each sample to [first, first + depth) of the columns. out.is_return is True so far."""
        places = first.take(self.owner)
        places += self.level
        is_return = self.is_return
        columns: tuple[NDArray[Any], ...] = (self.address, self.sp, self.method)
        apart = places[self.looked_up_here]
        if self.needs_scalar.any():
            done = ~self.needs_scalar[self.owner]
            is_done = done[self.looked_up_here]
            apart, is_return = apart[is_done], is_return[is_done]
            places = places[done]
            columns = tuple(column[done] for column in columns)
        into: tuple[NDArray[Any], ...] = (out.address, out.sp, out.method)
        for column, found in zip(into, columns, strict=True):
            column[places] = found
        out.is_return[apart] = is_return


def words_of(samples: SampleBatch) -> NDArray[np.uint64] | NDArray[np.uint32]:
    """The flat stack bytes as the architecture's words, at least one. A copy only where they cannot be seen as such."""
    word_bytes = samples.arch.word_bytes
    data = np.ascontiguousarray(samples.stack_bytes)
    missing = -len(data) % word_bytes or (word_bytes if not len(data) else 0)
    if missing or data.ctypes.data % word_bytes:
        data = np.concatenate([data, np.zeros(missing, np.uint8)])
    return data.view("<u8") if word_bytes == 8 else data.view("<u4")
