"""Stacks that are unwound beside those of held blocks."""

import numpy as np
import pytest

from memleak_android.host.heap import survivors
from memleak_android.host.heap.key_history import KeySnapshot
from memleak_android.host.heap.keys import key_identity
from memleak_android.host.wire.blocks import HELD_ROW, KEY_ROW


def test_what_held_most_at_any_of_the_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ending program gives it back, and at the end nothing tells of it."""
    monkeypatch.setattr(survivors, "TOP_KEYS_MAX", 1)
    instants = []
    for largest in (2, 3):
        rows = np.zeros(4, HELD_ROW)
        rows["key"], rows["pid"], rows["space"] = range(1, 5), 7, 10
        rows["space"][rows["key"] == largest] = 4096
        instants.append(KeySnapshot(1, rows))
    keys = np.zeros(1, KEY_ROW)
    keys["key"], keys["pid"], keys["alloc_bytes"] = 1, 7, 99
    wanted = np.zeros(3, HELD_ROW)
    wanted["key"], wanted["pid"] = (1, 2, 3), 7
    assert survivors.top_keys(instants, keys).tolist() == sorted(key_identity(wanted).tolist())
