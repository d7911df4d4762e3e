"""The measurement ends, the program goes on: calls that were on their way then are in the books with their stacks, or not at all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.attaching import waiting
from tests.support.gcc import gcc
from tests.support.workloads import Run, run

SOURCE = Path(__file__).parents[1] / "programs" / "last_calls_workload.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("last_calls") / "last_calls"
    flags = ("-g", "-O1", "-fno-optimize-sibling-calls", "-Wall", "-Werror", "-pthread")
    gcc(*flags, "-o", made, SOURCE)
    return made


def check(done: Run) -> None:
    totals = done.totals
    assert totals["alloc_objects"] == totals["inuse_objects"] > 0
    assert (totals["lost"], totals["unattributed_objects"]) == ({}, 0)


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_of_a_command(program: Path, tmp_path: Path, tracer: str) -> None:
    done = run(tracer, tmp_path, "--", program, options=("--duration", "1s"))
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    check(done)


@pytest.mark.parametrize("tracer", ["plt", "bpf"])
def test_of_a_process_that_runs(program: Path, tmp_path: Path, tracer: str) -> None:
    with waiting([program], program.name) as (_, pid):
        check(run(tracer, tmp_path, "--pid", str(pid), options=("--duration", "1s")))
