"""The stack keys that held most at the peak, and those that allocated most, even if they hold nothing any more."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap.key_history import KeySnapshot
from memleak_android.host.heap.keys import key_identity
from memleak_android.host.wire.blocks import Rows

KEYS_MAX = 1_000  # by each measure

Identities = NDArray[np.uint64]


def top_keys(peak: KeySnapshot | None, keys: Rows) -> Identities:
    """Identities (key_identity) of the keys that held most at the peak, and that allocated most bytes and blocks.

    keys: KEY_ROW at the end.
    """
    at_peak = _largest(peak.rows, peak.rows["space"]) if peak is not None else np.empty(0, np.uint64)
    by_count, by_space = (_largest(keys, keys[name]) for name in ("alloc_objects", "alloc_bytes"))
    return np.unique(np.concatenate([at_peak, by_count, by_space]))


def _largest(rows: Rows, weight: NDArray[np.uint64]) -> Identities:
    if len(rows) > KEYS_MAX:
        rows = rows[np.argpartition(weight, len(rows) - KEYS_MAX)[len(rows) - KEYS_MAX :]]
    return key_identity(rows)


def first_evidence(references: Rows, keys: Identities) -> NDArray[np.int64]:
    """Indexes of the first evidence (EVIDENCE_REFERENCE) of each key that has any."""
    found = np.flatnonzero(np.isin(key_identity(references), keys))
    _, first = np.unique(key_identity(references[found]), return_index=True)
    return np.asarray(found[first])
