"""Deep stacks keep both ends; recursions of different depth become the same stack."""

import numpy as np
import pytest

from memleak_android.host.stacks.stack_unwinder import fold
from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd

LIMIT = 300
GAP = 0  # address of what stands for others
BOTTOM, TOP = [7, 8], [1, 2, 3]


def batch(*stacks: list[int]) -> TraceBatch:
    """Frames by address; the stack pointer of each is its index."""
    depth = [len(stack) for stack in stacks]
    n = sum(depth)
    return TraceBatch(
        np.concatenate([[0], np.cumsum(depth)]),
        np.array([address for stack in stacks for address in stack], np.uint64),
        np.array([i for stack in stacks for i in range(len(stack))], np.uint64),
        np.ones(n, bool),
        np.full(n, Method.EH_FRAME, np.uint8),
        np.full(len(stacks), TraceEnd.ROOT, np.uint8),
    )


def stacks_of(traces: TraceBatch) -> list[list[int]]:
    return [part.tolist() for part in np.split(traces.address, traces.offsets[1:-1])]


def test_stacks_within_the_limit_are_left_alone() -> None:
    traces = batch([5] * LIMIT, TOP)
    assert fold(traces, LIMIT) is traces


@pytest.mark.parametrize("period", [[5], [5, 6], [4, 5, 6], list(range(20, 36))])
def test_rounds_of_a_recursion_are_left_out(period: list[int]) -> None:
    """However many, and wherever the last round ends."""
    for rest in range(len(period)):
        tail = period[:rest] + BOTTOM
        deep = [TOP + period * n + tail for n in (500, 1002)]
        kept = TOP + period * 8 + [GAP] + period * 8 + tail
        assert stacks_of(fold(batch(TOP, *deep, BOTTOM), LIMIT)) == [TOP, kept, kept, BOTTOM]


def test_two_recursions_one_after_the_other() -> None:
    deep = TOP + [5] * 500 + [6] * 400 + BOTTOM
    assert stacks_of(fold(batch(deep), LIMIT)) == [
        TOP + [5] * 8 + [GAP] + [5] * 8 + [6] * 8 + [GAP] + [6] * 8 + BOTTOM
    ]


def test_both_ends_of_what_does_not_repeat() -> None:
    deep = list(range(1000, 1500))
    assert stacks_of(fold(batch(deep), LIMIT)) == [[*deep[:150], GAP, *deep[-150:]]]


def test_the_gap_is_no_frame() -> None:
    folded = fold(batch([5] * 500), LIMIT)
    gap = folded.address.tolist().index(GAP)
    assert folded.method[gap] == Method.FOLDED and not folded.is_return[gap]
    assert folded.sp.tolist() == [*range(9), *range(492, 500)]
    assert folded.end.tolist() == [TraceEnd.ROOT]
