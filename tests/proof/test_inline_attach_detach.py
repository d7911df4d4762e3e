"""Inline hooks put in and taken out a hundred times under full allocation load."""

from __future__ import annotations

import statistics

import pytest

from memleak_android.host.wire.blocks import Stopped
from tests.support.attached_session import contents_of, layout_of, leak
from tests.support.inline_session import attach_inline, own_allocator_program, started

pytestmark = [pytest.mark.proof, pytest.mark.compares_code]

TIMES = 100


def test_a_hundred_times_under_load_nothing_is_left_and_nothing_is_lost() -> None:
    stops_ms = []
    with started(own_allocator_program("own_allocator"), "6") as process:
        before, layout = contents_of(process.pid), layout_of(process.pid)
        for number in range(TIMES):
            found = attach_inline(process.pid, lambda: leak(process))
            assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23), (number, found)
            assert contents_of(process.pid) == before, (number, found.remarks)
            assert layout_of(process.pid) == layout, number
            stops_ms += found.stops_ms(Stopped.ALL)
        leak(process)
    print(
        f"{len(stops_ms)} times all stopped: median {statistics.median(stops_ms):.3f} ms, max {max(stops_ms):.3f} ms"
    )
