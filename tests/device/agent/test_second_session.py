"""A second session of the shim on a process that is measured: refused before anything changes, and the first counts on."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.device.agent.test_attach_refusals import refusal
from tests.support.attached_session import leak, loaded, workload
from tests.support.attaching import attached, descendant
from tests.support.program_server import start_program

pytestmark = pytest.mark.compares_code

MEASURED = "process PID is measured already, by another session with the shim; end that one first, or use --tracer bpf"


@contextmanager
def measured(first: str, report: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The workload and its pid, in a session; its end ends the session, which writes the report."""
    if first != "preload":
        with loaded(0) as process, attached(process.pid, report, tracer=first) as session:
            yield process, process.pid
            process.communicate(b"q")
            assert session.wait(60) == 0
        return
    words = ["-q", "--tracer", "preload", "--json", report, "--", workload(), "load", "0"]
    with start_program(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None and session.stdout.readline() == b"ready\n"
        yield session, descendant(session.pid, workload().name[:15])
        session.communicate(b"q", timeout=60)
    assert session.returncode == 0


def of_size(report: Path, size: int) -> int:
    sites = json.loads(report.read_text())["sites"]
    return sum(site["inuse_objects"] for site in sites if site["inuse_space"] == size * site["inuse_objects"])


@pytest.mark.parametrize("second", ["plt", "inline"])
@pytest.mark.parametrize("first", ["plt", "inline", "preload"])
def test_the_second_is_refused_and_the_first_counts_on(first: str, second: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with measured(first, report) as (process, pid):
        leak(process)
        said = refusal(pid, second)
        assert MEASURED in said or "was started with the shim" in said
        leak(process)
    assert of_size(report, 5003) == 46


def test_one_after_the_other(tmp_path: Path) -> None:
    """The claim of a session ends with it, and what it left in the process claims nothing."""
    with loaded(0) as process:
        for tracer in ("plt", "inline", "plt"):
            report = tmp_path / f"{tracer}.json"
            with attached(process.pid, report, "--force", tracer=tracer) as session:
                leak(process)
                session.send_signal(2)
                assert session.wait(60) == 0
            assert of_size(report, 5003) == 23
