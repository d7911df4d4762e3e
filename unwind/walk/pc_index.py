"""An open-addressing hash from keys to small numbers, looked up for many keys at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ABSENT = -1
_EMPTY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # not a key: keys stay below 2**64 - 1
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio (Fibonacci hashing)
_FILL = 4  # slots per key at least: most look-ups end at the first slot


class PcIndex:
    """uint64 keys → int32 values.

    keys, values: the slots, to be read only; a key's first slot is key * _MULTIPLIER >> shift.
    """

    def __init__(self, bits: int = 12) -> None:
        self._count = 0
        self._allocate(bits)

    def __len__(self) -> int:
        return self._count

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The value of each key, ABSENT where it has none."""
        slots = self._slots_of(keys)
        found = self.keys.take(slots)
        values = self.values.take(slots)
        pending = (found != keys).nonzero()[0]
        while len(pending):
            pending = pending[found[pending] != _EMPTY]
            slots[pending] = (slots[pending] + 1) & self._mask
            found[pending] = self.keys[slots[pending]]
            values[pending] = self.values[slots[pending]]
            pending = pending[found[pending] != keys[pending]]
        return values

    def insert(self, keys: NDArray[np.uint64], values: NDArray[np.int32]) -> None:
        """Adds distinct keys that are not in it yet."""
        self._count += len(keys)
        if self._count * _FILL > len(self.keys):
            old = self.keys != _EMPTY
            keys = np.concatenate([self.keys[old], keys])
            values = np.concatenate([self.values[old], values])
            self._allocate((self._count * _FILL).bit_length())
        self._place(keys, values)

    def _allocate(self, bits: int) -> None:
        self.shift = 64 - bits
        self._shift = np.uint64(self.shift)
        self._mask = (1 << bits) - 1
        self.keys = np.full(1 << bits, _EMPTY, np.uint64)
        self.values = np.full(1 << bits, ABSENT, np.int32)

    def _slots_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        slots = keys * _MULTIPLIER
        slots >>= self._shift
        return slots.view(np.int64)

    def _place(self, keys: NDArray[np.uint64], values: NDArray[np.int32]) -> None:
        slots = self._slots_of(keys)
        pending = np.arange(len(keys))
        while len(pending):
            free = pending[self.keys[slots[pending]] == _EMPTY]
            self.keys[slots[free]] = keys[free]  # of several keys for one slot the last one stays
            placed = free[self.keys[slots[free]] == keys[free]]
            self.values[slots[placed]] = values[placed]
            pending = pending[self.keys[slots[pending]] != keys[pending]]
            slots[pending] = (slots[pending] + 1) & self._mask
