"""--follow measures the children that a process had before it was attached to, and theirs."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attaching import attached, children_of, until
from tests.support.program_server import start_program
from tests.support.workloads import PROGRAMS, build, built, need

WORKERS, LEAK = 3, 23 * 5003


@contextmanager
def master() -> Iterator[subprocess.Popen[bytes]]:
    """Its workers run."""
    process = subprocess.Popen([built(PROGRAMS / "prefork")], stdin=-1, stdout=-1, start_new_session=True)
    try:
        assert [process.stdout.readline() for _ in range(WORKERS)] == [b"ready!\n"] * WORKERS
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def leak(process: subprocess.Popen[bytes]) -> None:
    process.stdin.write(b"!" * WORKERS)
    process.stdin.flush()
    assert [process.stdout.readline() for _ in range(WORKERS)] == [b"leaked\n"] * WORKERS


@pytest.mark.compares_code
@pytest.mark.parametrize(
    ("tracer", "counted"),
    [pytest.param("bpf", WORKERS, marks=pytest.mark.changes_all_code), ("plt", WORKERS), ("inline", 0)],
)
def test_of_a_master_of_workers(tracer: str, counted: int, tmp_path: Path) -> None:
    """Inline hooks are placed in one process: the others are said to be missing."""
    report = tmp_path / "report.json"
    with master() as process, attached(process.pid, report, "--follow", tracer=tracer) as session:
        assert tracer != "plt" or until(lambda: all(map(is_hooked, workers_of(process.pid))))
        leak(process)
        session.send_signal(signal.SIGINT)
        session.communicate(timeout=60)
    found = json.loads(report.read_text())
    assert [one["space"] for one in found.get("processes", [])] == [LEAK] * counted
    assert (found["measurement"] == "complete") == bool(counted), found["measurement"]


FORKS = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
char *volatile kept;
int main(void) { getchar(); fork(); kept = malloc(5003); write(1, "held\\n", 5); pause(); }
"""


@pytest.mark.changes_all_code
def test_a_later_child_has_its_parent_s_name(tmp_path: Path) -> None:
    source, report = tmp_path / "forks.c", tmp_path / "report.json"
    source.write_text(FORKS)
    command = [build(source, tmp_path, output="forks")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, start_new_session=True) as process:
        with attached(process.pid, report, "--follow", tracer="bpf") as session:
            process.stdin.write(b"!")
            process.stdin.flush()
            assert [process.stdout.readline() for _ in range(2)] == [b"held\n"] * 2
            session.send_signal(signal.SIGINT)
            session.communicate(timeout=60)
        os.killpg(process.pid, signal.SIGKILL)
    assert [one["name"] for one in json.loads(report.read_text())["processes"]] == ["forks"] * 2


@pytest.mark.changes_all_code
def test_calls_of_workers() -> None:
    need("bpf")
    with master() as process:
        words = [
            "snoop",
            "--pid",
            process.pid,
            "--follow",
            "-f",
            "libc.so.6:malloc",
            "--filter",
            "arg0==5003",
        ]
        with start_program([*words, "--statistics"], stdout=-1, stderr=-1, text=True) as tool:
            assert "functions probed" in tool.stderr.readline()
            leak(process)
            tool.send_signal(signal.SIGINT)
            out, err = tool.communicate(timeout=60)
    assert out.splitlines()[1].split()[:2] == ["malloc", str(23 * WORKERS)], out + err


def workers_of(pid: int) -> list[int]:
    children = [*children_of(pid)]
    return children + [below for child in children for below in workers_of(child)]


def is_hooked(pid: int) -> bool:
    process = Path(f"/proc/{pid}")
    is_traced = "\nTracerPid:\t0\n" not in (process / "status").read_text()
    return "memleak" in (process / "maps").read_text() and not is_traced
