"""Stops of threads, from the agent's blocks and from what `memleakd inject` prints."""

import numpy as np

from memleak_android.host.analysis.pipeline import thread_stops
from memleak_android.host.heap.capture import Capture
from memleak_android.host.profile.profile import StopMoment, ThreadStop
from memleak_android.host.tracers.inline.target import reserved
from memleak_android.host.wire.blocks import STOP, Block, BlockKind


def test_in_order_of_time_and_without_what_is_not_known() -> None:
    rows = np.array(
        [(30, 3, 7, 5, 3, 2, 0), (20, 2, 7, 5, 2, 1, 0), (25, 9, 7, 5, 9, 1, 0), (26, 9, 7, 5, 2, 3, 0)], STOP
    )
    capture = Capture()
    capture.add(Block(BlockKind.STOPS, rows.tobytes()), -1)
    capture.add(Block(BlockKind.STOPS, np.array([(10, 1, 7, 5, 1, 1, 0)], STOP).tobytes()), -1)
    assert thread_stops(capture) == (
        ThreadStop(StopMoment.PREPARE, False, 1, 5, 7),
        ThreadStop(StopMoment.ATTACH, False, 2, 5, 7),
        ThreadStop(StopMoment.DETACH, True, 3, 5, 7),
    )


def test_a_hostile_recording_s_are_bounded() -> None:
    capture = Capture()
    capture.add(Block(BlockKind.STOPS, np.array([(1, 2, 7, 5, 2, 1, 0)] * 100_000, STOP).tobytes()), -1)
    assert len(thread_stops(capture)) == 1024
    capture.add(Block(BlockKind.STOPS, np.array([(1, 2**63, 7, 5, 2, 1, 0)], STOP).tobytes()), -1)
    assert [error.kind for error in capture.malformed] == [BlockKind.STOPS]


def test_what_a_reservation_cost() -> None:
    answer = reserved(7, 0, "1048577 5 1\nstop 1 1000 200 5\nstop 2 3000 2200 1\nstop 1 -1 x\nend\n", "")
    assert answer.distance == 1048577
    assert answer.stops.tolist() == [(1000, 200, 7, 5, 1, 1, 0), (3000, 2200, 7, 1, 1, 2, 0)]
