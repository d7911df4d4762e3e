"""External failures: one clear line, the right exit code, no probe and no process left behind."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import descendant, until
from tests.support.program_server import start_program
from tests.support.workloads import PROGRAM, both_tracers, build, built, functions, need, run

ABORTED, TARGET, INCOMPLETE = 130, 4, 6


def test_process_that_ends_while_attaching(tmp_path: Path) -> None:
    for delay in (0.3, 0.6, 0.9, 1.2):
        with subprocess.Popen(["/usr/bin/sleep", str(delay)]) as process:
            done = run("bpf", tmp_path, "--pid", str(process.pid), codes=(0, TARGET, INCOMPLETE))
        assert done.code != TARGET or len(done.errors) == 1, done.err
        assert "Traceback" not in done.err


@both_tracers
@pytest.mark.parametrize(
    "after_s",
    [
        *(0.05, 0.7, 1.2),
        *(pytest.param(after_s, marks=pytest.mark.proof) for after_s in (0.3, 2.0, 3.0)),
    ],
)
def test_interrupt_at_any_moment(tracer: str, after_s: float, tmp_path: Path) -> None:
    """One Ctrl-C: a report of what was allocated until then, or nothing yet to report; the agent is gone."""
    need(tracer)
    report = tmp_path / "report.json"
    argv: list[str | Path] = [*PROGRAM, "--tracer", tracer, "--json", report, "--", built("waits"), "7"]
    process = subprocess.Popen(
        argv, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(after_s)
    agents = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    # Before our own code is read, Python has its own words for it.
    if "Traceback" not in err or "cli.py" in err:
        assert process.returncode in (0, ABORTED, INCOMPLETE, -signal.SIGINT), err
        assert "Traceback" not in err
    if process.returncode in (0, INCOMPLETE):
        check_beginning(json.loads(report.read_text()))
    assert not [pid for pid in agents if is_agent(pid)]


def test_interrupt_before_anything_is_measured(tmp_path: Path) -> None:
    """A static program never loads the shim: Ctrl-C ends the session as aborted, and the reason is said."""
    need("preload")
    program = build("waits", tmp_path, "-static", output="waits")
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start_program(["--tracer", "preload", "--", program, "7"], **streams) as process:
        until(lambda: descendant_runs(process.pid, "waits"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == ABORTED and b"never loaded the recorder" in err, err


def descendant_runs(pid: int, name: str) -> bool:
    try:
        return bool(descendant(pid, name))
    except AssertionError:
        return False


def check_beginning(report: dict[str, Any]) -> None:
    """Of `waits 7`: the first blocks, however many; each of its size, and by main or without a stack."""
    totals = report["totals"]
    blocks = totals["inuse_objects"]
    assert 0 <= blocks <= 7 and totals["inuse_space"] == 1009 * blocks
    for site in report["sites"]:
        assert functions(site)[:2] == ["malloc", "main"] and site["end"] == "ROOT", site
        assert site["inuse_space"] == 1009 * site["inuse_objects"]
    assert sum(site["inuse_objects"] for site in report["sites"]) == blocks - totals["unattributed_objects"]


def is_agent(pid: str) -> bool:
    try:
        return "memleakd" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False
