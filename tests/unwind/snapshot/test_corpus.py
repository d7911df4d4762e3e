"""Captured stacks by the batch, by the engine and one by one: frame by frame the same.

The frames that another unwinder pins are compared in tests/host/commands/test_unwind.py.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from memleak_android.unwind.engine.library import library_path, load
from memleak_android.unwind.snapshot.folder import Snapshot
from memleak_android.unwind.walk.batch import BatchUnwinder, unwind_batch
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.step import unwind_sample
from tests.support.corpus import CASES, case_folder, expectation, options_of
from tests.support.stack_capture import repeated


@pytest.mark.parametrize("name", CASES)
def test_the_lock_step_and_the_scalar_unwinder_agree(name: str) -> None:
    folder = case_folder(name)
    snapshot = Snapshot(folder, options_of(expectation(folder)))
    samples = replace(snapshot.sample(), extra_memory=None)
    frames, end = unwind_sample(samples, 0, Planner(snapshot.arch, [snapshot.space], snapshot), 1024)
    for engine in (None, library_path()):
        traces = BatchUnwinder([snapshot.space], snapshot, engine=engine).unwind(samples)
        columns = (traces.address, traces.sp, traces.is_return, traces.method)
        assert list(zip(*(c.tolist() for c in columns), strict=True)) == [tuple(f) for f in frames]
        assert traces.end.tolist() == [end]


def test_what_a_signal_interrupted_is_looked_up_where_it_was() -> None:
    """Only as the other unwinder's rule is its pc reduced."""
    folder = case_folder("offset_arm")
    options = replace(options_of(expectation(folder)), like_libunwindstack=False)
    frames, _ = Snapshot(folder, options).unwind()
    assert [f.lookup for f in frames if f.method.name == "SIGNAL"] == [0]


def test_a_stack_alone_is_cut_where_the_other_stack_begins() -> None:
    folder = case_folder("offset_arm")
    options = replace(options_of(expectation(folder)), memory_files=("stack0.data",))
    frames, _ = Snapshot(folder, options).unwind()
    assert 4 < len(frames) < len(expectation(folder)["frames"])


@pytest.mark.parametrize("name", ["straddle_arm64", "photos_reset_arm64"])
def test_frame_by_frame_a_shorter_slice_gives_a_prefix(name: str) -> None:
    folder = case_folder(name)
    snapshot = Snapshot(folder, options_of(expectation(folder)))
    samples = replace(snapshot.sample(), extra_memory=None)
    whole = unwind_batch(samples, [snapshot.space], snapshot).address.tolist()
    lengths = np.arange(0, int(samples.stack_length[0]), 72)
    cut = replace(repeated(samples, len(lengths)), stack_length=lengths)
    traces = unwind_batch(cut, [snapshot.space], snapshot)
    assert len(traces) == len(lengths)
    for begin, end in pairwise(traces.offsets.tolist()):
        part = traces.address[begin:end].tolist()
        assert part == whole[: len(part)] and len(part)


@pytest.mark.parametrize(
    "name", ["photos_reset_arm64", "apk_rx_arm64", "bluetooth_arm64__pc_4", "straddle_arm", "jit_map_arm"]
)
def test_common_stacks_need_no_slow_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaf functions, interpreter frames, exidx: all by the engine, as the scalar unwinder finds them."""
    if load(library_path()) is None:
        pytest.skip("no compiled engine for this machine (make device builds it)")
    folder = case_folder(name)
    snapshot = Snapshot(folder, options_of(expectation(folder)))
    samples = replace(snapshot.sample(), extra_memory=None)
    frames, _ = unwind_sample(samples, 0, Planner(snapshot.arch, [snapshot.space], snapshot), 1024)

    def refuse(*arguments: object) -> None:
        raise AssertionError("stepped one by one")

    monkeypatch.setattr("memleak_android.unwind.walk.batch.unwind_one_by_one", refuse)
    traces = BatchUnwinder([snapshot.space], snapshot).unwind(samples)
    assert traces.address.tolist() == [frame.address for frame in frames]
