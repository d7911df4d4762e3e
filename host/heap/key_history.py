"""Sums by stack key at earlier snapshots, in bounded memory. Growth is judged by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memleak_android.host.heap import attribution
from memleak_android.host.heap.keys import key_identity
from memleak_android.host.wire.blocks import HELD_ROW, Rows

INSTANTS_MAX = 64
INTERVAL_MIN_NS = 10**6  # no tracer takes snapshots faster
ROWS_MAX = 1 << 21  # of all instants together: 64 MiB


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """Bytes held at one instant (nanoseconds of the target's monotonic clock), by key (HELD_ROW)."""

    timestamp_ns: int
    rows: Rows


class KeyHistory:
    """Snapshots in order of time. Beyond the limits, the one closest to its neighbours is dropped first."""

    def __init__(self) -> None:
        self.instants: list[KeySnapshot] = []
        self._n_rows = 0

    def add(self, snapshot: KeySnapshot) -> None:
        """Skips a snapshot less than INTERVAL_MIN_NS after the last: a recording may be hostile."""
        if self.instants and snapshot.timestamp_ns < self.instants[-1].timestamp_ns + INTERVAL_MIN_NS:
            return
        self.instants.append(snapshot)
        self._n_rows += len(snapshot.rows)
        while len(self.instants) > INSTANTS_MAX or (self._n_rows > ROWS_MAX and len(self.instants) > 2):
            self._drop_closest()

    def __copy__(self) -> KeyHistory:
        made = KeyHistory()
        made.instants, made._n_rows = list(self.instants), self._n_rows
        return made

    def _drop_closest(self) -> None:
        times = np.array([each.timestamp_ns for each in self.instants], np.uint64)
        closest = 1 + int(np.argmin(times[2:] - times[:-2]))
        self._n_rows -= len(self.instants.pop(closest).rows)


def held_by_key(live: Rows) -> Rows:
    """Sums of live blocks (LIVE_ROW) by process and key; with sampling estimates and their variances."""
    identities = key_identity(live)
    order = np.argsort(identities)
    starts = np.ones(len(order), bool)
    starts[1:] = np.diff(identities[order]) != 0
    number, n = np.cumsum(starts) - 1, int(starts.sum())
    size, first = live["size"].astype(np.float64), order[starts]
    rows = np.zeros(n, HELD_ROW)
    rows["key"], rows["pid"] = live["key"][first], live["pid"][first]
    if live["sample_bytes"].any():
        weight = attribution.sampling_weights(live)
        rows["variance"] = np.bincount(number, attribution.variances(live, weight)[order], n)
        size *= weight
    rows["space"] = np.rint(np.minimum(np.bincount(number, size[order], n), 2.0**62))
    return rows
