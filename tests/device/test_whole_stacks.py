"""Stacks as real programs have them: pages that were never touched, and several stacks of one thread."""

from pathlib import Path

import pytest

from tests.support.attaching import run_attached
from tests.support.whole_stacks import PROGRAM, RECURSION, ROUNDS, STACKS, check
from tests.support.workloads import TRACERS, built, functions, run

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


@pytest.mark.parametrize("tracer", TRACERS)
def test_what_a_handler_interrupts_is_named_as_missing(tracer: str, tmp_path: Path) -> None:
    """The handler's own stack is sent, not that on which the signal came."""
    report = run(tracer, tmp_path, "--", built("alternate_stack"), codes=[0, 6]).report
    (found,) = (site for site in report["sites"] if "on_signal" in functions(site))
    assert (found["end"], report["verdict"]) == ("STACK_TRUNCATED", "incomplete")
    (note,) = (note for note in report["notes"] if "stacks are cut" in note)
    assert "1 behind a signal handler" in note
