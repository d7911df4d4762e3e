"""Truncated chains continued by others of their thread: where all agree, and nowhere else."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import Method, TraceBatch, TraceEnd, join_truncated

ROOT, CUT, LOST = TraceEnd.ROOT, TraceEnd.STACK_TRUNCATED, TraceEnd.NO_UNWIND_ROW
Chain = tuple[list[tuple[int, int]], TraceEnd]  # (address, stack pointer), innermost first


def batch(chains: list[Chain]) -> TraceBatch:
    frames = [frame for chain, _ in chains for frame in chain]
    levels = [level for chain, _ in chains for level in range(len(chain))]
    return TraceBatch(
        np.cumsum([0, *(len(chain) for chain, _ in chains)]),
        np.array([address for address, _ in frames], np.uint64),
        np.array([sp for _, sp in frames], np.uint64),
        np.array(levels) > 0,
        np.where(np.array(levels) > 0, Method.EH_FRAME, Method.REGISTERS).astype(np.uint8),
        np.array([end for _, end in chains], np.uint8),
    )


def joined(chains: list[Chain], threads: list[int] | None = None, overlap: int = 2) -> list[Chain]:
    found = join_truncated(batch(chains), np.array(threads or [7] * len(chains)), overlap=overlap)
    spans = [
        slice(a, b) for a, b in zip(found.offsets[:-1].tolist(), found.offsets[1:].tolist(), strict=True)
    ]
    for (chain, _), span in zip(chains, spans, strict=True):
        methods = found.method[span].tolist()
        assert methods[len(chain) :] == [Method.JOINED] * (len(methods) - len(chain))
        assert Method.JOINED not in methods[: len(chain)] and not found.is_return[span.start]
        assert found.is_return[span][1:].all()
    return [
        (list(zip(found.address[span].tolist(), found.sp[span].tolist(), strict=True)), TraceEnd(end))
        for span, end in zip(spans, found.end.tolist(), strict=True)
    ]


def chain(text: str, end: TraceEnd = ROOT, top: int = 0) -> Chain:
    """Functions innermost first; a frame's stack pointer is its distance from the bottom, so callers lie higher."""
    names = text.split()
    return [(ord(name), 10_000 - 16 * (len(names) + top - i)) for i, name in enumerate(names)], end


WHOLE = chain("x c b a m")
CUT_C = chain("y d c b", CUT, top=2)  # y d c b [a m]


def test_a_cut_chain_goes_on_as_another_of_its_thread() -> None:
    assert joined([WHOLE, CUT_C]) == [WHOLE, chain("y d c b a m")]
    assert joined([CUT_C, WHOLE]) == [chain("y d c b a m"), WHOLE]


ONE_COMMON = chain("y d z b", CUT, top=2)
FIRST_ALONE: Chain = ([WHOLE[0][0]], CUT)
STARTS_AT_B: Chain = (chain("x c b", top=2)[0], ROOT)
# Chains that cannot come from one stack: each says that the other's caller is its own, at falling positions.
CIRCLE: list[Chain] = [
    ([(ord("z"), 0), (ord("a"), 16), (ord("b"), 32), (ord("a"), 16), (ord("b"), 32)], LOST),
    ([(ord("y"), 0), (ord("a"), 16), (ord("b"), 32)], CUT),
]


@pytest.mark.parametrize(
    ("chains", "threads", "overlap"),
    [
        pytest.param([WHOLE, CUT_C], [1, 2], 2, id="another thread"),
        pytest.param([WHOLE, chain("y d c b", CUT, top=3)], None, 2, id="another stack pointer"),
        pytest.param([WHOLE, ONE_COMMON], None, 2, id="one frame in common"),
        pytest.param([WHOLE, CUT_C], None, 3, id="two frames in common"),
        # its innermost frame has the address and the stack position, but it was not left by a call there
        pytest.param([chain("b a m"), chain("c b", CUT, top=2)], None, 1, id="an interrupted function"),
        pytest.param([WHOLE, FIRST_ALONE, WHOLE, WHOLE], None, 2, id="the chain before in the batch"),
        pytest.param([WHOLE, chain("x c b o m"), CUT_C], None, 2, id="samples that disagree"),
        pytest.param([WHOLE, STARTS_AT_B, CUT_C], None, 2, id="a start and a caller"),
        pytest.param(CIRCLE, None, 1, id="circle"),
    ],
)
def test_nothing_is_joined(chains: list[Chain], threads: list[int] | None, overlap: int) -> None:
    assert joined(chains, threads, overlap) == chains


def test_as_many_frames_in_common_as_asked_for() -> None:
    assert joined([WHOLE, ONE_COMMON], overlap=1) == [WHOLE, chain("y d z b a m")]


def test_up_to_where_samples_disagree() -> None:
    first, second = chain("x c b a m s"), chain("x c b a o s")
    cut = chain("y d c b", CUT, top=3)
    assert joined([first, second, cut])[2] == ([*cut[0], first[0][3]], CUT)


def test_other_ends_of_chains_are_not_evidence() -> None:
    lost = chain("x c b a", LOST, top=1)
    assert joined([lost, CUT_C])[1] == ([*CUT_C[0], lost[0][3]], CUT)
    assert joined([WHOLE, chain("y d c b", LOST, top=2)])[1][1] == LOST


def test_over_several_others() -> None:
    """Each shows a part: y d c b [a m s], x b a m [s], w m s."""
    parts = [chain("y d c b", CUT, 3), chain("x c b a m", CUT, 1), chain("w a m s")]
    assert joined(parts) == [chain("y d c b a m s"), chain("x c b a m s"), parts[2]]


def test_nothing_to_join() -> None:
    assert joined([]) == [] and joined([([], CUT), WHOLE]) == [([], CUT), WHOLE]
    with pytest.raises(ValueError, match="overlap"):
        join_truncated(batch([WHOLE]), np.array([1]), overlap=0)


@settings(max_examples=80)
@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=9), min_size=1, max_size=12), st.data())
def test_a_thread_with_one_caller_per_frame(paths: list[list[int]], data: st.DataObject) -> None:
    """Functions are named by their whole path: what is joined is what was cut, and all of it that others saw."""
    whole: list[Chain] = []
    cut: list[Chain] = []
    for path in paths:
        frames = [(hash(tuple(path[: i + 1])) & 0xFFFF_FFFF, 10_000 - 16 * i) for i in range(len(path))][::-1]
        whole.append((frames, ROOT))
        kept = data.draw(st.integers(1, len(frames)))
        cut.append((frames[:kept], ROOT if kept == len(frames) else CUT))
    caller = {(frame, i > 0): above for frames, _ in cut for i, (frame, above) in enumerate(pairwise(frames))}
    for (frames, end), (expected, _), (before, _) in zip(joined(cut, overlap=1), whole, cut, strict=True):
        seen = len(before)
        while seen < len(expected) and (expected[seen - 1], seen > 1) in caller:
            seen += 1
        assert frames == expected[:seen] and (end == ROOT) == (seen == len(expected))
