"""An index from pc to the line of RuleLines, for a block of address spaces."""

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi.table import LineIds
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.rule_lines import RuleLines

PC_BITS = 48  # of a user address; no mapping lies above
_ABSENT = -1  # not a line
_EMPTY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # not a key: keys stay below 2**64 - 1
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio (Fibonacci hashing)
_SLOTS_PER_KEY = 4  # at least: most searches end at the first slot


class TrackMore(Exception):
    """A line reads a register that was not tracked: the chunk has to begin anew."""


class StepLines:
    """Lines over a block of address spaces that begins at `first_space`, added as the engine misses them.

    rules: the lines. tracked: positions in arch.callee_saved of the registers whose location the engine tracks.
    """

    def __init__(self, planner: Planner, first_space: int) -> None:
        self._planner = planner
        self.first_space = first_space
        self.index = PcIndex()
        self.rules = RuleLines(planner.arch)
        self._line_of_plan = LineIds()
        self.tracked = [self.rules.fp_position]

    def signature_masks(self, spaces: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The bits of a return address that may be a signature, by address space of the block."""
        masks = np.zeros(int(spaces.max(initial=0)) + 1, np.uint64)
        for space in np.unique(spaces).tolist():
            masks[space] = self._planner.signature_mask(self.first_space + space)
        return masks

    def learn(self, keys: NDArray[np.uint64]) -> None:
        """Adds the lines of distinct new keys to the index.

        keys: pc << 1 | is_return, and above PC_BITS + 1 bits the address space's number in the block.
        Raises TrackMore.
        """
        spaces = (keys >> np.uint64(PC_BITS + 1)).astype(np.int64)
        pcs = (keys >> np.uint64(1)) & np.uint64((1 << PC_BITS) - 1)
        is_return = (keys & np.uint64(1)).astype(np.bool_)
        lines, distinct = np.empty(len(keys), np.int32), self._planner.distinct
        before = len(self.rules)
        for space in np.unique(spaces).tolist():
            chosen = np.flatnonzero(spaces == space)
            numbers = self._planner.numbers(self.first_space + space, pcs[chosen], is_return[chosen])
            lines[chosen] = self._line_of_plan.of(numbers, lambda n: self.rules.line_of(distinct[n]))
        self.index.insert(keys, lines)
        self._track(before)

    def _track(self, first: int) -> None:
        bases = self.rules.bases(first)
        if not bases <= set(self.tracked):
            self.tracked = sorted(bases | set(self.tracked))
            raise TrackMore


class PcIndex:
    """An open-addressing hash from uint64 keys to int32 values, which the engine searches.

    keys, values: the slots; a key's first slot is key * _MULTIPLIER >> shift.
    """

    def __init__(self, bits: int = 12) -> None:
        self._count = 0
        self._allocate(bits)

    def insert(self, keys: NDArray[np.uint64], values: NDArray[np.int32]) -> None:
        """Adds distinct keys that are not in it yet."""
        self._count += len(keys)
        if self._count * _SLOTS_PER_KEY > len(self.keys):
            old = self.keys != _EMPTY
            keys = np.concatenate([self.keys[old], keys])
            values = np.concatenate([self.values[old], values])
            self._allocate((self._count * _SLOTS_PER_KEY).bit_length())
        self._fill(keys, values)

    def _allocate(self, bits: int) -> None:
        self.shift = 64 - bits
        self._shift = np.uint64(self.shift)
        self._mask = (1 << bits) - 1
        self.keys = np.full(1 << bits, _EMPTY, np.uint64)
        self.values = np.full(1 << bits, _ABSENT, np.int32)

    def _slots_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        slots = keys * _MULTIPLIER
        slots >>= self._shift
        return slots.view(np.int64)

    def _fill(self, keys: NDArray[np.uint64], values: NDArray[np.int32]) -> None:
        slots = self._slots_of(keys)
        pending = np.arange(len(keys))
        while len(pending):
            free = pending[self.keys[slots[pending]] == _EMPTY]
            self.keys[slots[free]] = keys[free]  # of several keys for one slot the last one stays
            placed = free[self.keys[slots[free]] == keys[free]]
            self.values[slots[placed]] = values[placed]
            pending = pending[self.keys[slots[pending]] != keys[pending]]
            slots[pending] = (slots[pending] + 1) & self._mask
