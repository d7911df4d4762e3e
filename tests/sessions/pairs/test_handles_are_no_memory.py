"""Handles stand in the live table beside blocks, but are no memory: nothing is looked for there."""

import numpy as np

from memleak_android.host.analysis.reachability import blocks_at_stop
from memleak_android.host.heap import attribution as heap
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, LIVE_ROW, Function


def test_reachability_passes_over_handles_and_regions() -> None:
    rows = np.zeros(3, LIVE_ROW)
    rows["address"] = 0x1000, 3, 0x9000
    rows["size"] = 64, 1, 4096
    rows["sequence"] = 1, 2, 3
    rows["function"] = Function.MALLOC, FIRST_PAIR_FUNCTION + 5, Function.MMAP
    assert heap.is_heap(rows).tolist() == [True, False, False]
    assert heap.is_region(rows).tolist() == [False, False, True]
    assert blocks_at_stop(rows, rows[:1], 10).start.tolist() == [0x1000]
    assert blocks_at_stop(rows, rows, 10).start.tolist() == [0x1000]
