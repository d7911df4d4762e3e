"""Sums of literal blocks: by stack, by thread, by process, with sampling; and names of processes."""

from dataclasses import replace

import numpy as np

from memleak_android.host.analysis.block_sums import BlockSums, HeldBlocks, sum_blocks
from memleak_android.host.analysis.process_sums import process_names
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.keys import KeyStacks, key_identity
from memleak_android.host.wire.blocks import KEY_ROW, PROCESS, ProcessEvent, Rows
from tests.support.builders.blocks import key_rows, live_rows

KEYS = KeyStacks(
    keys=np.array([7], np.uint64),
    stack=np.array([0]),
    is_shared=np.array([False]),
    key_of_trace=np.array([0, 0]),
    stack_of_trace=np.array([0, 0]),
    n_stacks=2,
)


def held_blocks_of(live: Rows, stacks: list[int], weight: float) -> HeldBlocks:
    n = len(live)
    return HeldBlocks(
        rows=live,
        stack=np.array(stacks, np.int64),
        weight=np.full(n, weight),
        variance=np.zeros(n),
        is_approximate=np.zeros(n, bool),
        leak_kind=np.full(n, -1, np.int8),
    )


def sums(*blocks: dict[str, int], stacks: list[int], weight: float = 1.0) -> BlockSums:
    held, everything = held_blocks_of(live_rows(*blocks), stacks, weight), np.ones(len(blocks), bool)
    return sum_blocks(held, KEYS, np.empty(0, KEY_ROW), 10**10, everything, everything)


def test_by_stack_and_in_all() -> None:
    found = sums({"size": 8}, {"size": 16}, {"size": 32}, stacks=[0, 0, -1])
    assert found.shown.inuse_space.tolist() == [24, 0] and found.shown.inuse_objects.tolist() == [2, 0]
    assert found.inuse == (56, 3) and found.unattributed == found.omitted == (32, 1)
    assert found.shown is found.stacks and found.by_process is None


def test_by_process_and_thread() -> None:
    found = sums({"size": 8, "pid": 5, "tid": 5}, {"size": 16, "pid": 6, "tid": 9}, stacks=[1, -1])
    assert found.by_process is not None
    assert found.by_process.pid.tolist() == [5, 6] and found.by_process.stack.tolist() == [1, -1]
    assert [(thread.pid, thread.tid, thread.space) for thread in found.threads] == [(6, 9, 16), (5, 5, 8)]


def test_a_process_that_holds_all_of_the_machines_blocks_is_named() -> None:
    held, everything = held_blocks_of(live_rows({"size": 8, "pid": 5}), [1], 1.0), np.ones(1, bool)
    none = np.empty(0, KEY_ROW)
    found = sum_blocks(held, KEYS, none, 10**10, everything, everything, is_whole_machine=True)
    assert found.by_process is not None and found.by_process.pid.tolist() == [5]


def test_sampled_blocks_count_by_their_weight() -> None:
    found = sums({"size": 8, "sample_bytes": 64}, stacks=[0], weight=4.0)
    assert found.is_sampled and found.inuse == (32, 4) and found.shown.inuse_space.tolist() == [32, 0]


def test_counters_of_a_key_belong_to_its_stack() -> None:
    counters = key_rows({"key": 7, "pid": 100, "alloc_bytes": 99, "alloc_objects": 3})
    no_blocks, none = held_blocks_of(live_rows(), [], 1.0), np.empty(0, bool)
    keys = replace(KEYS, keys=key_identity(counters))
    found = sum_blocks(no_blocks, keys, counters, 10**10, none, none)
    assert found.stacks.alloc_space.tolist() == [99, 0] and found.stacks.alloc_objects.tolist() == [3, 0]


def test_fork_without_a_name_has_its_parents() -> None:
    """perf_event_open(2): PERF_RECORD_FORK has none. A child that calls exec later has its program's."""
    rows = np.zeros(5, PROCESS)
    for row, (event, pid, parent, name) in zip(
        rows,
        [
            (ProcessEvent.START, 7, 1, b"server"),
            (ProcessEvent.FORK, 8, 7, b""),
            (ProcessEvent.FORK, 9, 8, b""),
            (ProcessEvent.FORK, 10, 7, b""),
            (ProcessEvent.EXEC, 10, 0, b"sh"),
        ],
        strict=True,
    ):
        row["event"], row["pid"], row["parent"], row["comm"] = event, pid, parent, name
    capture = Capture()
    capture.processes.append(rows)
    assert process_names(capture) == {7: "server", 8: "server", 9: "server", 10: "sh"}
