"""Stack keys: one number for process and key, and the stacks that a key has."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire.blocks import Rows

SUM_MAX = 2.0**126  # bytes²; keeps the variances of a hostile recording finite


def key_identity(rows: Rows) -> NDArray[np.uint64]:
    """One number for process and key. Keys are hashes of 64 bits: a collision is as unlikely as two equal keys."""
    return np.asarray(rows["key"] + rows["pid"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def find_sorted(
    present: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each wanted value: the first index of it in `present`, which is sorted, and whether it is there."""
    if not len(present):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    index = np.minimum(np.searchsorted(present, wanted), len(present) - 1)
    return index, np.asarray(present[index] == wanted)


@dataclass(frozen=True, slots=True)
class KeyStacks:
    """The keys that the traces of a table have.

    keys: sorted identities (key_identity). stack: of the first trace of each. is_shared: it has several stacks.
    key_of_trace: index into keys. stack_of_trace: as the table's.
    """

    keys: NDArray[np.uint64]
    stack: NDArray[np.int64]
    is_shared: NDArray[np.bool_]
    key_of_trace: NDArray[np.int64]
    stack_of_trace: NDArray[np.int64]
    n_stacks: int

    def find(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """For each row that has a key: its index in keys, and whether it is there."""
        return find_sorted(self.keys, key_identity(rows))


def key_stacks(table: StackTable) -> KeyStacks:
    keys, first, key = np.unique(key_identity(table.traces), return_index=True, return_inverse=True)
    stack_of_trace = table.stack_of_trace
    stack = stack_of_trace[first]
    is_shared = np.zeros(len(keys), bool)
    is_shared[key[stack_of_trace != stack[key]]] = True
    return KeyStacks(keys, stack, is_shared, key, stack_of_trace, len(table.first_trace))


@dataclass(frozen=True, slots=True)
class KeyShares:
    """How each key is divided among stacks: `share` of `key` (index into keys) belongs to `stack`.

    A key that covers several stacks is divided as its blocks are in the last snapshot; how it was before is unknown. A key
    that holds nothing any more belongs to the first of its stacks, if one is known: a stack may have had another key before
    the rules of its code were known. n_live: how many of the triples come from the last snapshot.
    """

    keys: NDArray[np.uint64]  # identities, sorted
    key: NDArray[np.int64]
    stack: NDArray[np.int64]
    share: NDArray[np.float64]
    n_stacks: int
    n_live: int

    def by_stack(self, rows: Rows, column: str) -> NDArray[np.float64]:
        """Sums of a column of HELD_ROW over the keys of each stack."""
        index, is_known = find_sorted(self.keys, key_identity(rows))
        values = np.clip(np.nan_to_num(rows[column].astype(np.float64)), 0, SUM_MAX)
        held = np.bincount(index[is_known], values[is_known], len(self.keys))
        return np.asarray(np.bincount(self.stack, held[self.key] * self.share, self.n_stacks), np.float64)
