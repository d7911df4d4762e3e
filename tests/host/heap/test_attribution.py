"""The ledger: who speaks for a block, against a naive reckoning; estimates against simulation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.host.heap import attribution as heap
from memleak_android.host.heap.capture import EVIDENCE_REFERENCE
from memleak_android.host.wire.blocks import Function, Rows
from tests.support.builders.blocks import live_rows


def references(*rows: tuple[int, int, int]) -> Rows:
    """(sequence, key, pid)."""
    result = np.zeros(len(rows), EVIDENCE_REFERENCE)
    for i, (sequence, key, pid) in enumerate(rows):
        result[i] = (sequence, key, 0, 0, i, pid)
    return result


def test_forked_process_inherits_keys_over_generations() -> None:
    evidence = references((1, 7, 100))
    live = live_rows({"sequence": 5, "key": 7, "pid": 300}, {"sequence": 6, "key": 8, "pid": 300})
    assert heap.attribute(live, evidence, {300: 200, 200: 100}).evidence.tolist() == [0, heap.UNATTRIBUTED]


def test_parents_in_a_circle_end() -> None:
    live = live_rows({"sequence": 5, "key": 7, "pid": 300})
    assert heap.attribute(live, references((1, 7, 100)), {300: 200, 200: 300}).evidence.tolist() == [
        heap.UNATTRIBUTED
    ]


small = st.integers(1, 4)


@given(
    st.lists(st.tuples(st.integers(1, 30), small, small), max_size=12, unique_by=lambda row: row[0]),
    st.lists(st.tuples(st.integers(1, 30), small, small), max_size=12),
)
def test_attribution_against_the_definition(
    evidence: list[tuple[int, int, int]], live: list[tuple[int, int, int]]
) -> None:
    rows = live_rows(*({"sequence": s, "key": k, "pid": p} for s, k, p in live))
    found = heap.attribute(rows, references(*evidence), {})
    for (sequence, key, pid), index, is_own in zip(live, found.evidence, found.is_own, strict=True):
        own = [i for i, one in enumerate(evidence) if one[0] == sequence]
        same = [(s, i) for i, (s, k, p) in enumerate(evidence) if (k, p) == (key, pid)]
        earlier = [one for one in same if one[0] < sequence]
        expected = (
            own[0] if own else max(earlier)[1] if earlier else min(same)[1] if same else heap.UNATTRIBUTED
        )
        assert (index, is_own) == (expected, bool(own))


def test_all_evidence_of_a_shared_key_is_unwound_but_not_that_of_dead_keys() -> None:
    evidence = references((1, 7, 100), (2, 7, 100), (3, 8, 100), (4, 9, 100), (5, 9, 100))
    live = live_rows({"sequence": 6, "key": 7}, {"sequence": 4, "key": 9})
    found = heap.attribute(live, evidence, {})
    # key 7: both, they might differ; key 9: the only block has evidence of its own
    assert heap.evidence_of_held_keys(live, found, evidence).tolist() == [0, 1, 3]


def test_ambiguous_where_stacks_of_a_key_differ() -> None:
    evidence = references((1, 7, 100), (2, 7, 100), (3, 8, 100), (4, 8, 100), (5, 7, 200))
    stacks = np.array([0, 1, 2, 2, 9])
    found = heap.ambiguous_evidence(heap.key_groups(evidence), stacks, np.arange(5))
    assert found.tolist() == [True, True, False, False, False]


def test_weights_are_unbiased_and_their_error_is_right() -> None:
    """Poisson sampling, simulated: mean of the estimate and its standard error over 4,000 runs."""
    rng = np.random.default_rng(1)
    n, size, interval = 500, 100, 4096
    p = 1 - np.exp(-size / interval)
    sampled = rng.binomial(n, p, 4000)
    row = live_rows({"size": size, "sample_bytes": interval})
    weight = heap.sampling_weights(row)[0]
    estimates = sampled * weight * size
    assert abs(estimates.mean() / (n * size) - 1) < 0.01
    stated = np.sqrt(n * p * heap.variances(row, heap.sampling_weights(row))[0])
    assert abs(estimates.std() / stated - 1) < 0.05


def test_block_recorded_for_certain_counts_once() -> None:
    rows = live_rows({"size": 0}, {"size": 10**6})
    assert heap.sampling_weights(rows).tolist() == [1.0, 1.0]
    assert heap.variances(rows, heap.sampling_weights(rows)).tolist() == [0.0, 0.0]


def test_sampled_block_of_no_bytes_has_a_finite_weight() -> None:
    assert np.isfinite(heap.sampling_weights(live_rows({"size": 0, "sample_bytes": 4096}))).all()


def test_selection_by_age_and_size() -> None:
    rows = live_rows(
        {"timestamp_ns": 100, "size": 5}, {"timestamp_ns": 200, "size": 50}, {"timestamp_ns": 900}
    )
    assert heap.select(rows, 1000, older_ns=800).tolist() == [True, True, False]
    assert heap.select(rows, 1000, older_ns=2000).tolist() == [False, False, False]
    assert heap.select(rows, 1000, min_size=6, max_size=50).tolist() == [False, True, True]
    assert heap.select(rows, 500).all()  # allocated while the snapshot was taken: the totals have them, too


def test_regions_are_not_heap_blocks() -> None:
    rows = live_rows(
        {"function": Function.PVALLOC}, {"function": Function.MMAP}, {"function": Function.MREMAP}
    )
    assert heap.is_region(rows).tolist() == [False, True, True]
