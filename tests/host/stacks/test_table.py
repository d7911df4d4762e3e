"""Stacks as columns: each frame once, and the same stacks found as by a plain dictionary."""

import numpy as np
import pytest

from memleak_android.host.stacks import table as stack_table
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire.blocks import FRAME_ROW, TRACE_ROW, Rows


def random_traces(n: int, seed: int) -> tuple[Rows, Rows]:
    """Few frames and short stacks, so that many are the same, or the beginning of another."""
    random = np.random.default_rng(seed)
    traces = np.zeros(n, TRACE_ROW)
    traces["sequence"] = np.arange(n)
    traces["n_frames"] = random.integers(0, 6, n)
    traces["function"], traces["end"] = random.integers(1, 3, n), random.integers(0, 2, n)
    frames = np.zeros(int(traces["n_frames"].sum()), FRAME_ROW)
    frames["vaddr"] = random.choice([0x10, 0x20, 2**63], len(frames))
    frames["module"] = random.integers(0, 2, len(frames))
    frames["address"] = frames["vaddr"] + random.integers(0, 2, len(frames)).astype(np.uint64) * 4096
    frames["sp"] = random.integers(0, 1 << 40, len(frames))
    return traces, frames


def filled(traces: Rows, frames: Rows, parts: int) -> StackTable:
    table = StackTable()
    bounds = np.concatenate([[0], np.cumsum(traces["n_frames"].astype(np.int64))])
    for rows in np.array_split(np.arange(len(traces)), parts):
        table.append(traces[rows], frames[bounds[rows[0]] : bounds[rows[-1] + 1]])
    return table


def naive_numbers(traces: Rows, frames: Rows) -> tuple[list[int], list[int]]:
    numbers: dict[tuple[object, ...], int] = {}
    of_trace, first, at = [], [], 0
    for i, (n, function, end) in enumerate(traces[["n_frames", "function", "end"]].tolist()):
        key = (function, end, *frames[["vaddr", "module"]][at : at + n].tolist())
        at += n
        if key not in numbers:
            first.append(i)
        of_trace.append(numbers.setdefault(key, len(numbers)))
    return of_trace, first


@pytest.mark.parametrize("parts", (1, 7))
@pytest.mark.parametrize("seed", range(5))
def test_the_same_stacks_as_a_dictionary_finds(seed: int, parts: int) -> None:
    traces, frames = random_traces(500, seed)
    table = filled(traces, frames, parts)
    assert (table.stack_of_trace.tolist(), table.first_trace.tolist()) == naive_numbers(traces, frames)
    assert 10 < len(table.first_trace) < 500


def test_numbers_stay_when_more_is_added() -> None:
    traces, frames = random_traces(500, 1)
    bounds = int(traces["n_frames"][:100].sum())
    table = StackTable()
    table.append(traces[:100], frames[:bounds])
    before = table.stack_of_trace.tolist()
    table.append(traces[100:], frames[bounds:])
    assert table.stack_of_trace[:100].tolist() == before


@pytest.mark.parametrize("is_colliding", (False, True))
def test_frames_come_back_as_they_were(is_colliding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_colliding:  # a hash that is equal for all frames
        monkeypatch.setattr(stack_table, "_hash", lambda frames: np.zeros(len(frames), np.uint64))
    traces, frames = random_traces(300, 3)
    table = filled(traces, frames, 5)
    assert (np.concatenate([table.frames_of(trace) for trace in range(300)]) == frames).all()
    assert (table.stack_of_trace.tolist(), table.first_trace.tolist()) == naive_numbers(traces, frames)


def test_each_frame_is_kept_once() -> None:
    traces, frames = random_traces(500, 4)
    table = filled(traces, frames, 9)
    distinct = {tuple(row) for row in frames[["address", "vaddr", "module"]].tolist()}
    assert len(table.distinct_frames) == len(distinct)


def test_chunks_are_what_was_added() -> None:
    traces, frames = random_traces(10_000, 5)
    chunks = list(filled(traces, frames, 2).chunks())
    assert len(chunks) > 1 and [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert (np.concatenate([chunk.traces for chunk in chunks]) == traces).all()
    assert (np.concatenate([chunk.frames for chunk in chunks]) == frames).all()


def test_an_empty_table() -> None:
    table = StackTable()
    assert len(table.first_trace) == len(table.stack_of_trace) == 0
    assert [len(chunk.traces) for chunk in table.chunks()] == [0]


def test_frames_used_by_some_traces() -> None:
    traces, frames = random_traces(200, 6)
    table = filled(traces, frames, 1)
    asked = np.array([5, 17, 3])
    expected = {int(number) for trace in asked for number in table.frame_numbers(int(trace))}
    assert set(np.flatnonzero(table.frames_used(asked)).tolist()) == expected


def test_traces_that_use_one_of_some_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_table, "_TRACES_AT_ONCE", 7)
    traces, frames = random_traces(200, 6)
    table = filled(traces, frames, 1)
    asked = np.arange(199, 3, -2)
    for sought in ({1}, {2, 5}, set[int]()):
        chosen = np.isin(np.arange(len(table.distinct_frames)), list(sought))
        expected = [not sought.isdisjoint(table.frame_numbers(int(trace)).tolist()) for trace in asked]
        assert table.use_one_of(asked, chosen).tolist() == expected
