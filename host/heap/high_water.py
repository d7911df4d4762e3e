"""The high-water mark and who held it: as the target counts it, else of the snapshots the one that held most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap import attribution
from memleak_android.host.heap.key_history import KeySnapshot, held_by_key
from memleak_android.host.wire.blocks import HELD_ROW, Rows

KEYS_MAX = 50_000  # kept apart; the others are one row without a key


@dataclass(frozen=True, slots=True)
class Counted:
    """The high-water mark as the target's own counters tell it. bound: never was more held than so many bytes above."""

    at: KeySnapshot
    space: int
    bound: int


class HighWater:
    """Follows a capture: marks that processes tell, and its whole snapshots, of which the one that held most counts elsewhere.

    Regions (mmap) do not count, the heap lies in them.
    """

    def __init__(self) -> None:
        self.level = 0  # bytes: the highest by the counters of STATUS, which come oftener
        self._space = -1  # bytes of the snapshot that held most
        self._at: KeySnapshot | None = None  # that one; None = the last
        self._last_space = -1
        self._is_last = False
        self._counted: Counted | None = None  # what a process was before an exec gives way
        self._pids: set[int] = set()  # who told; two at most
        self._chunks: list[Rows] = []

    @property
    def counted(self) -> Counted | None:
        """None: nobody has told a mark, or several processes have, which they do not reach together."""
        return self._counted if len(self._pids) == 1 else None

    @property
    def at(self) -> KeySnapshot | None:
        """The earlier moment at which more was held than at the last snapshot; None = there is none."""
        counted = self.counted
        if counted is None:
            return self._at
        return counted.at if counted.space > self._last_space else None

    @property
    def space(self) -> int:
        """Bytes held then; -1: not known yet."""
        return self._space if self.counted is None else self.counted.space

    @property
    def bound(self) -> int | None:
        """Never was more held than so many bytes above; None = of snapshots, nobody can say."""
        return None if self.counted is None else self.counted.bound

    def add(self, header: np.void, rows: Rows) -> None:
        """A chunk of a mark (HIGH_WATER, HIGH_WATER_ROW)."""
        if len(self._pids) < 2:
            self._pids.add(int(header["pid"]))
        if len(self._pids) > 1:
            return
        self._chunks.append(rows)
        if not header["last"]:
            return
        told = np.concatenate(self._chunks)
        self._chunks.clear()
        held = np.zeros(len(told), HELD_ROW)
        held["key"], held["pid"], held["space"] = told["key"], header["pid"], told["bytes"]
        space = int(told["bytes"].astype(np.float64).sum())
        bound = max(0, int(header["mark"]) + int(header["bound_bytes"]) - space)
        at = KeySnapshot(int(header["timestamp_ns"]), largest_keys(held))
        self._counted = Counted(at, space, bound)

    def see(self, timestamp_ns: int, live: Rows) -> None:
        """A new last snapshot (LIVE_ROW)."""
        self._last_space = heap_space(live)
        self._is_last = self._last_space >= self._space
        if self._is_last:
            self._space, self._at = self._last_space, None

    def keep(self, held: KeySnapshot, live: Rows) -> None:
        """The last snapshot gives way to the next. held: of all its blocks, `live`."""
        if not self._is_last:
            return
        is_region = attribution.is_region(live)
        rows = held_by_key(live[~is_region]) if is_region.any() else held.rows
        self._at = KeySnapshot(held.timestamp_ns, largest_keys(rows))

    def count(self, level: int) -> None:
        """What is held now, by the counters of all allocations and frees."""
        self.level = max(self.level, level)

    def told(self, at: KeySnapshot) -> None:
        """By a finished recording."""
        self._at, self._space = at, int(at.rows["space"].astype(np.float64).sum())


def heap_space(live: Rows) -> int:
    """Bytes of the blocks that are no regions, estimated where sampled."""
    space = 0.0
    for part in attribution.chunks(len(live)):
        blocks = live[part][~attribution.is_region(live[part])]
        space += float((blocks["size"] * attribution.sampling_weights(blocks)).sum())
    return round(space)


def largest_keys(rows: Rows) -> Rows:
    """HELD_ROWs of the KEYS_MAX keys that hold most, and one of key 0 for all others."""
    if len(rows) <= KEYS_MAX:
        return rows
    order: NDArray[np.int64] = np.argsort(-rows["space"].astype(np.float64), kind="stable")
    rest = np.zeros(1, HELD_ROW)
    rest["space"] = rows["space"][order[KEYS_MAX:]].sum()
    return np.concatenate([rows[order[:KEYS_MAX]], rest])
