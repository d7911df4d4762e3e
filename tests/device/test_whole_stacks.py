"""Stacks as real programs have them: pages that were never touched, several stacks of one thread, more threads than others have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import run_attached
from tests.support.whole_stacks import PROGRAM, RECURSION, ROUNDS, STACKS, check
from tests.support.workloads import PROGRAMS, TRACERS, built, functions, run

both_ways = pytest.mark.parametrize("mode", STACKS)


@both_ways
@pytest.mark.parametrize("tracer", TRACERS)
def test_of_a_command(tracer: str, mode: str, tmp_path: Path) -> None:
    check(run(tracer, tmp_path, "--", built(PROGRAM), mode).report, mode)


@both_ways
@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline"])
def test_of_a_running_process(tracer: str, mode: str, tmp_path: Path) -> None:
    argv = [built(PROGRAM), mode, "waits"]
    code, _, report = run_attached(tracer, argv, tmp_path / "report.json")
    assert code == 0
    check(report, mode)


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_limit_is_kept(tracer: str, tmp_path: Path) -> None:
    options = ["--stack-bytes", "16k", "--every-stack"]
    found = run(tracer, tmp_path, "--", built(PROGRAM), "holes", options=options, codes=(0, 6))
    cut = [site for site in found.sites() if site["end"] == "STACK_TRUNCATED"]
    assert {tuple(functions(site)) for site in cut} == {("malloc", "take", "spread")}


def test_all_frames_are_shown_when_asked(tmp_path: Path) -> None:
    found = run("preload", tmp_path, "--", built(PROGRAM), "recursion", options=["--max-frames", "8192"])
    deep = {functions(site).count("deep") for site in found.sites() if "deep" in functions(site)}
    assert deep == {RECURSION + 1 + 2 * number for number in range(ROUNDS)}


def test_what_a_handler_interrupts_is_named_as_missing(tmp_path: Path) -> None:
    """Where only the handler's own stack is sent, as on older kernels."""
    command = ("--", built("alternate_stack"))
    report = run("bpf", tmp_path, *command, options=["--perf-events"], codes=[0, 6]).report
    (found,) = (site for site in report["sites"] if "on_signal" in functions(site))
    assert (found["end"], report["measurement"]) == ("STACK_TRUNCATED", "incomplete")
    (note,) = (note for note in report["notes"] if "stacks are cut" in note)
    assert "1 behind a signal handler" in note


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_forged_frame_of_a_signal_leads_nowhere(tracer: str, tmp_path: Path) -> None:
    found = run(tracer, tmp_path, "--", built(PROGRAM), "forged", codes=(0, 6))
    sites = [site for site in found.sites() if "on_forged_signal" in functions(site)]
    assert sum(site["inuse_objects"] for site in sites) == 7 * ROUNDS
    assert "exited with status 0" in found.err
    # the code that was interrupted is known, and no more
    assert {site["end"] for site in sites} <= {
        "STACK_TRUNCATED",
        "NO_PROGRESS",
        "NO_MAPPING",
        "NO_UNWIND_ROW",
    }


THREADS = PROGRAMS / "many_threads.c"
MANY, ATTACHED = 3000, 1500
FEW, LIMIT_KB, SLOTS = 300, 3_000_000, 128  # so many slots remain of the shim's 8,192


def check_threads(report: Mapping[str, Any], n_threads: int) -> None:
    found = sum(site["inuse_objects"] for site in report["sites"] if "each" in functions(site))
    assert (found, report["totals"]["unattributed_objects"]) == (n_threads, 0), report["notes"]
    assert not any(report["totals"]["lost"].values())


@pytest.mark.parametrize("tracer", TRACERS)
def test_many_threads_of_a_command(tracer: str, tmp_path: Path) -> None:
    check_threads(run(tracer, tmp_path, "--", built(THREADS), str(MANY)).report, MANY)


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline"])
def test_many_threads_of_a_running_process(tracer: str, tmp_path: Path) -> None:
    argv = [built(THREADS), str(ATTACHED), "waits"]
    code, _, report = run_attached(tracer, argv, tmp_path / "report.json")
    assert code == 0
    check_threads(report, ATTACHED)


@pytest.mark.parametrize("before", ["", "clears"])
def test_threads_beyond_the_limit_are_counted(before: str, tmp_path: Path) -> None:
    """With little address space there are few slots. No call is missed, and the limit is said.

    before: what the threads call first: calloc(), which an allocator may build on malloc().
    """
    command = f"ulimit -v {LIMIT_KB}; exec {built(THREADS, '-fno-builtin')} {FEW} {before}"
    found = run("preload", tmp_path, "--", "sh", "-c", command, codes=(0, 6))
    blocks = sum(site["inuse_objects"] for site in found.sites() if "each" in functions(site))
    assert blocks + found.totals["unattributed_objects"] >= FEW
    assert not found.totals["lost"].get("threads_full")
    assert not any("calls were missed" in note for note in found.report["notes"])
    assert any(f"had more than {SLOTS - 1} threads at a time" in note for note in found.report["notes"])
