"""Kinds of leaks from literal memory, and from random memory against the definition itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.host.analysis.reachability import (
    KINDS,
    NOT_JUDGED,
    Blocks,
    blocks_at_stop,
    kinds_of_live,
    leak_kinds,
)
from memleak_android.host.machine.scan.words import MemoryScan
from memleak_android.host.profile.profile import LeakKind
from memleak_android.host.wire.blocks import LIVE_ROW, Function

REACHABLE, POSSIBLY, INDIRECTLY, DEFINITELY = LeakKind
HEAP, END, ROOT, SIZE = 0x10000, 0x20000, 0x80000, 0x40


def block(number: int) -> int:
    return HEAP + 0x100 * number


def scanned(words: list[tuple[int, int]], heaps: list[tuple[int, int]]) -> MemoryScan:
    return MemoryScan(
        np.array([a for a, _ in words], np.uint64),
        np.array([v for _, v in words], np.uint64),
        np.array(heaps, np.uint64).reshape(-1, 2),
        np.array([(ROOT + 0x1000, ROOT + 0x2000)], np.uint64),
        *(0, 0, 0, 1),
    )


def kinds_of(
    n: int, words: list[tuple[int, int]], unrecorded: LeakKind | None = None, certain: int | None = None
) -> list[LeakKind]:
    """Of n blocks, the first ones certain; words: (address, value)."""
    start = np.array([block(i) for i in range(n)], np.uint64)
    blocks = Blocks(start, np.full(n, SIZE, np.uint64), np.arange(n))
    blocks.row[n if certain is None else certain :] = -1
    return [KINDS[kind] for kind in leak_kinds(scanned(words, [(HEAP, END)]), blocks, unrecorded)]


def test_register_and_variable_keep_chains():
    words = [(0, block(0)), (block(0) + 8, block(1)), (ROOT, block(2))]
    assert kinds_of(4, words) == [REACHABLE, REACHABLE, REACHABLE, DEFINITELY]


def test_interior_pointer_is_possible_all_the_way():
    assert kinds_of(2, [(ROOT, block(0) + 1), (block(0), block(1))]) == [POSSIBLY, POSSIBLY]
    assert kinds_of(2, [(ROOT, block(0)), (block(0), block(1) + 63)]) == [REACHABLE, POSSIBLY]
    assert kinds_of(1, [(ROOT, block(0) + SIZE)]) == [DEFINITELY]


@pytest.mark.parametrize(
    ("unrecorded", "kind"), [(None, DEFINITELY), (POSSIBLY, POSSIBLY), (REACHABLE, REACHABLE)]
)
def test_memory_between_blocks(unrecorded: LeakKind | None, kind: LeakKind):
    assert kinds_of(1, [(block(5), block(0))], unrecorded) == [kind]


@pytest.mark.parametrize(
    ("unrecorded", "kind"), [(None, INDIRECTLY), (POSSIBLY, POSSIBLY), (REACHABLE, REACHABLE)]
)
def test_memory_of_a_block_that_may_not_have_been_there(unrecorded: LeakKind | None, kind: LeakKind):
    words = [(block(1), block(0))]
    assert kinds_of(2, words, unrecorded) == [INDIRECTLY, DEFINITELY]
    assert kinds_of(2, words, unrecorded, certain=1)[0] == kind


def test_arena_refers_to_chunks_behind_a_block():
    assert kinds_of(1, [(ROOT, block(0) + SIZE - 16)]) == [POSSIBLY]
    start = np.array([HEAP], np.uint64)
    blocks = Blocks(start, np.array([0x48], np.uint64), np.arange(1))
    for source, kind in ((ROOT, POSSIBLY), (ROOT + 0x1000, DEFINITELY)):
        assert [KINDS[k] for k in leak_kinds(scanned([(source, HEAP + 0x40)], []), blocks, None)] == [kind]


def test_long_list_and_wide_tree():
    n = 200
    chain = [(ROOT, block(0)), *((block(i), block(i + 1)) for i in range(99))]
    wide = [(block(99) + 8 * (i % 8), block(i)) for i in range(100, 200)]
    assert kinds_of(n, [*chain, *wide]) == [REACHABLE] * n


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(
                st.tuples(st.integers(-1, n - 1), st.integers(0, n - 1), st.sampled_from([0, 8])), max_size=20
            ),
        )
    )
)
def test_definition(case: tuple[int, list[tuple[int, int, int]]]):
    """Block by block, by the definition; of a lost cycle that nothing else leads to, the lowest is the leader."""
    n, links = case
    words = [(ROOT if a < 0 else block(a), block(b) + inside) for a, b, inside in links]
    reach = {b for a, b, inside in links if a < 0 and not inside}
    for _ in range(n):
        reach |= {b for a, b, inside in links if a in reach and not inside}
    held = reach | {b for a, b, _ in links if a < 0}
    for _ in range(n):
        held |= {b for a, b, _ in links if a in held}
    lost = set(range(n)) - held
    leads = {a: {a} for a in lost}
    for _ in range(n):
        for a in lost:
            leads[a] |= {b for c, b, _ in links if c in leads[a] and b in lost}
    expected = []
    for one in range(n):
        to_it = {other for other in lost if one in leads[other]}
        is_leader = one in lost and all(other in leads[one] and other >= one for other in to_it)
        of_lost = DEFINITELY if is_leader else INDIRECTLY
        expected.append(REACHABLE if one in reach else POSSIBLY if one in held else of_lost)
    assert kinds_of(n, words) == expected


def rows(*fields: tuple[int, int, int, int]) -> np.ndarray:
    """address, size, timestamp_ns, sequence."""
    result = np.zeros(len(fields), LIVE_ROW)
    for name, column in zip(
        ("address", "size", "timestamp_ns", "sequence"), zip(*fields, strict=True), strict=True
    ):
        result[name] = column
    result["function"] = Function.MALLOC
    return result


def test_blocks_of_two_snapshots():
    before = rows((0x1000, 64, 1, 1), (0x2000, 64, 2, 2), (0x3000, 64, 3, 3))
    after = rows((0x4000, 64, 900, 9), (0x1000, 64, 1, 1), (0x2010, 8, 20, 5))
    # 2 was freed and its address reused, 9 is younger than the stop
    blocks = blocks_at_stop(before, after, 100)
    assert blocks.start.tolist() == [0x1000, 0x2010, 0x3000]
    assert blocks.row.tolist() == [1, -1, -1]  # 5 may have come after it, whatever its time
    after["function"] = Function.MMAP, Function.MALLOC, 64  # a region, and what is no memory at all
    assert blocks_at_stop(after, after, 1000).row.tolist() == [1]
    assert kinds_of_live(blocks, np.array([3, 2, 1], np.int8), 3).tolist() == [NOT_JUDGED, 3, NOT_JUDGED]
