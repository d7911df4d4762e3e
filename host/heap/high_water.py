"""The high-water mark and what each key held then: by the target's counters, else the snapshot that held most."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap import attribution
from memleak_android.host.heap.key_history import KeySnapshot, held_by_key
from memleak_android.host.wire.blocks import HELD_ROW, Rows

KEYS_MAX = 50_000  # kept separately; the others are summed in a row without a key


@dataclass(frozen=True, slots=True)
class Counted:
    """The high-water mark from the target's own counters. bound: the true peak is at most this many bytes higher."""

    at: KeySnapshot
    space: int
    bound: int


class HighWater:
    """Follows the marks that processes report and, as a substitute, the whole snapshots of a capture.

    Regions (mmap) do not count, because they contain the heap.
    """

    def __init__(self) -> None:
        self.level = 0  # bytes: the highest by the counters of STATUS, which arrive more often
        self._space = -1  # bytes of the snapshot that held most
        self._at: KeySnapshot | None = None  # that snapshot; None = the last one
        self._last_space = -1
        self._is_last = False
        self._counted: Counted | None = None  # the last mark: an exec replaces an earlier one
        self._pids: set[int] = set()  # that reported marks; two at most
        self._chunks: list[Rows] = []

    @property
    def counted(self) -> Counted | None:
        """None if no process reported a mark, or several did (their peaks are not simultaneous)."""
        return self._counted if len(self._pids) == 1 else None

    @property
    def at(self) -> KeySnapshot | None:
        """The earlier moment with more held than in the last snapshot; None = there is none."""
        counted = self.counted
        if counted is None:
            return self._at
        return counted.at if counted.space > self._last_space else None

    @property
    def space(self) -> int:
        """Bytes held then; -1: unknown yet."""
        return self._space if self.counted is None else self.counted.space

    @property
    def bound(self) -> int | None:
        """The true peak is at most this many bytes higher; None = unknown, because snapshots miss peaks."""
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
        counted = np.concatenate(self._chunks)
        self._chunks.clear()
        held = np.zeros(len(counted), HELD_ROW)
        held["key"], held["pid"], held["space"] = counted["key"], header["pid"], counted["bytes"]
        space = int(counted["bytes"].astype(np.float64).sum())
        bound = max(0, int(header["mark"]) + int(header["bound_bytes"]) - space)
        at = KeySnapshot(int(header["timestamp_ns"]), largest_keys(held))
        self._counted = Counted(at, space, bound)

    def add_snapshot(self, timestamp_ns: int, live: Rows) -> None:
        """A new last snapshot. live: LIVE_ROW."""
        self._last_space = heap_space(live)
        self._is_last = self._last_space >= self._space
        if self._is_last:
            self._space, self._at = self._last_space, None

    def replace_snapshot(self, held: KeySnapshot, live: Rows) -> None:
        """The last snapshot is about to be replaced. live: its blocks; held: their sums by key."""
        if not self._is_last:
            return
        is_region = attribution.is_region(live)
        rows = held_by_key(live[~is_region]) if is_region.any() else held.rows
        self._at = KeySnapshot(held.timestamp_ns, largest_keys(rows))

    def add_level(self, level: int) -> None:
        """level: bytes held now, by the counters of allocations and frees."""
        self.level = max(self.level, level)

    def set_recorded(self, at: KeySnapshot) -> None:
        """The mark in a finished recording."""
        self._at, self._space = at, int(at.rows["space"].astype(np.float64).sum())


def heap_space(live: Rows) -> int:
    """Bytes of the blocks that are not regions, estimated where sampled."""
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
