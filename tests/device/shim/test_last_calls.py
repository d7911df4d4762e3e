"""The measurement ends, the program goes on: calls that were on their way then are in the books with their stacks, or not at all."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.recording.file import Recording
from tests.support.attaching import waiting
from tests.support.workloads import Run, built, run


def check(done: Run) -> None:
    totals = done.totals
    assert totals["alloc_objects"] == totals["inuse_objects"] > 0
    assert (totals["lost"], totals["unattributed_objects"]) == ({}, 0)


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_of_a_command(tmp_path: Path, tracer: str) -> None:
    done = run(tracer, tmp_path, "--", built("drives"), options=("--duration", "1s"))
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    check(done)


@pytest.mark.parametrize("tracer", ["plt", "bpf"])
def test_of_a_process_that_runs(tmp_path: Path, tracer: str) -> None:
    with waiting([built("drives")], "drives") as (_, pid):
        check(run(tracer, tmp_path, "--pid", str(pid), options=("--duration", "1s")))


@pytest.mark.bpf
def test_the_last_snapshot_is_of_the_end_of_counting(tmp_path: Path) -> None:
    """Not of the end of detaching, which takes seconds on a busy machine: rates were too low by as much."""
    times, path = tmp_path / "times", tmp_path / "a.memleak"
    command = ["--", built("timed_calls"), str(times)]
    done = run("bpf", tmp_path, *command, options=("--duration", "1s", "-o", path))
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    capture, recording = Capture(), Recording(path)
    for offset, block in recording.blocks():
        capture.add(block, offset)
    recording.close()
    last = capture.snapshot
    assert last is not None
    calls = np.fromfile(times, "<u8").reshape(-1, 2) @ np.array([10**9, 1], np.uint64)
    newest = last.live["timestamp_ns"].max()
    assert ((calls > newest) & (calls < last.timestamp_ns)).sum() <= 1
