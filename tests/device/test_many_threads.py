"""Processes with more threads than others have: each has its stack, or what that costs is said."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import run_attached
from tests.support.workloads import PROGRAMS, TRACERS, built, functions, run

PROGRAM = PROGRAMS / "many_threads.c"
MANY, ATTACHED = 3000, 1500
FEW, LIMIT_KB, SLOTS = 300, 3_000_000, 128  # so many slots remain of the shim's 8,192


def check(report: Mapping[str, Any], n_threads: int) -> None:
    found = sum(site["inuse_objects"] for site in report["sites"] if "each" in functions(site))
    assert (found, report["totals"]["unattributed_objects"]) == (n_threads, 0), report["notes"]
    assert not any(report["totals"]["lost"].values())


@pytest.mark.parametrize("tracer", TRACERS)
def test_of_a_command(tracer: str, tmp_path: Path) -> None:
    check(run(tracer, tmp_path, "--", built(PROGRAM), str(MANY)).report, MANY)


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline"])
def test_of_a_running_process(tracer: str, tmp_path: Path) -> None:
    argv = [built(PROGRAM), str(ATTACHED), "waits"]
    code, _, report = run_attached(tracer, argv, tmp_path / "report.json")
    assert code == 0
    check(report, ATTACHED)


def test_threads_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    """With little address space there are few slots. No call is missed, and the limit is said."""
    command = f"ulimit -v {LIMIT_KB}; exec {built(PROGRAM)} {FEW}"
    found = run("preload", tmp_path, "--", "sh", "-c", command, codes=(0, 6))
    blocks = sum(site["inuse_objects"] for site in found.sites() if "each" in functions(site))
    assert blocks + found.totals["unattributed_objects"] >= FEW
    assert not found.totals["lost"].get("threads_full")
    assert not any("calls were missed" in note for note in found.report["notes"])
    assert any(f"had more than {SLOTS - 1} threads at a time" in note for note in found.report["notes"])
