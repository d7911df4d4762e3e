"""The measurement ends, the program goes on: calls that were on their way then are in the books with their stacks, or not at all."""

import os
import signal
from pathlib import Path

import pytest

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
