"""The exit status of a measured command is ours, unless a limit or an option says otherwise."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.program_server import run_program
from tests.support.workloads import PROGRAM

PRELOAD = ("-q", "--tracer", "preload")


@pytest.mark.parametrize(
    ("command", "status"), [("exit 0", 0), ("exit 1", 1), ("exit 255", 255), ("kill -USR1 $$", 128 + signal.SIGUSR1)]
)  # fmt: skip
def test_the_commands_own(command: str, status: int) -> None:
    done = run_program([*PRELOAD, "--", "sh", "-c", command])
    assert done.returncode == status, done.stderr
    assert run_program([*PRELOAD, "--exit-status", "ours", "--", "sh", "-c", command]).returncode == 0


@pytest.mark.parametrize(
    "options", [("--fail-on-leak", "1"), ("--fail-on-leak", "0,0", "--fail-on-incomplete")]
)
def test_a_limit_that_is_exceeded_goes_first(options: tuple[str, ...]) -> None:
    """Both failures are said."""
    done = run_program([*PRELOAD, *options, "--", "sh", "-c", "exit 3"])
    assert done.returncode == 23
    assert "FAIL: " in done.stderr and "sh exited with status 3" in done.stderr
    assert run_program([*PRELOAD, "--fail-on-leak", "1G", "--", "sh", "-c", "exit 3"]).returncode == 3


def test_a_limit_that_cannot_be_judged() -> None:
    """Growth, in a run of milliseconds."""
    assert run_program([*PRELOAD, "--fail-on-growth", "1/min", "--", "true"]).returncode == 6


@pytest.mark.parametrize(
    ("options", "status"), [((), 4), (("--fail-on-incomplete",), 6), (("--fail-on-leak", "1G"), 6)]
)
def test_an_incomplete_measurement(options: tuple[str, ...], status: int) -> None:
    done = run_program([*PRELOAD, "--max-live", "1", *options, "--", "sh", "-c", "exit 4"])
    assert done.returncode == status, done.stderr
    assert "CANNOT TELL" in done.stderr and done.stderr.count("the live table was full") == 1


def test_streams_are_the_commands(tmp_path: Path) -> None:
    """Its input is ours; nothing comes between what it writes, and the report goes to the other stream."""
    words = [
        *PROGRAM,
        *PRELOAD,
        "--json",
        str(tmp_path / "report.json"),
        "--",
        "sh",
        "-c",
        "cat; echo x >&2; exit 5",
    ]
    done = subprocess.run(words, input=b"one\ntwo\n", capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"one\ntwo\n", 5)
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "x" and any(line.startswith("measured: every allocation (preload)") for line in lines)
    assert json.loads((tmp_path / "report.json").read_text())["answer"]["state"]
