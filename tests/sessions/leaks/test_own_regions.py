"""Programs with an allocator above mmap(): the regions it keeps are judged like blocks, or said to have no owner."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import attached
from tests.support.workloads import PROGRAM, built, functions, need

PRINTS = 9  # more than growth needs


def report_after(session: subprocess.Popen[str], report: Path, prints: int = PRINTS) -> dict[str, Any]:
    """Of a session that is ended after some interval prints."""
    assert session.stdout is not None
    while prints and (line := session.stdout.readline()):
        prints -= line.startswith("[") and "Top " in line
    session.send_signal(signal.SIGINT)
    said, _ = session.communicate(timeout=120)
    assert session.returncode in (0, 6, 130), said
    parsed: dict[str, Any] = json.loads(report.read_text())
    return parsed


def of_started(tracer: str, report: Path, how: str, prints: int = PRINTS) -> dict[str, Any]:
    need(tracer)
    words = [
        "--tracer",
        tracer,
        "--interval",
        "200ms",
        "--json",
        str(report),
        "--",
        str(built("arenas")),
        how,
    ]
    with subprocess.Popen(
        [*PROGRAM, *words], stdin=-1, stdout=-1, stderr=subprocess.STDOUT, text=True
    ) as session:
        return report_after(session, report, prints)


def growing(report: dict[str, Any]) -> list[tuple[str, ...]]:
    assert report["growth"]["instants"] >= report["growth"]["needed"]
    assert {site["growth"]["trend"] for site in report["sites"] if site["kind"] == "mmap"} <= {"grows"}
    return [tuple(functions(site)[:3]) for site in report["sites"] if site["growth"]["trend"] == "grows"]


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_of_a_program_that_we_start(tracer: str, tmp_path: Path) -> None:
    report = of_started(tracer, tmp_path / "report.json", "libc")
    assert growing(report) == [("mmap", "new_arena", "main")]
    assert 1009 <= report["totals"]["inuse_space"] < 65536, "regions are no blocks"


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline", "bpf"])
def test_of_a_running_program(tracer: str, tmp_path: Path) -> None:
    argv = [built("arenas"), "libc"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdout.readline() == b"ready\n"
        with attached(program.pid, tmp_path / "report.json", tracer=tracer) as session:
            report = report_after(session, tmp_path / "report.json")
        program.kill()
    assert growing(report) == [("mmap", "new_arena", "main")]


def test_direct_system_calls_by_bpf(tmp_path: Path) -> None:
    report = of_started("bpf", tmp_path / "report.json", "syscall")
    assert growing(report) == [("mmap", "arena_of_kernel", "main")]


@pytest.mark.proof
def test_direct_system_calls_that_no_hook_sees(tmp_path: Path) -> None:
    """The kernel's figures show them."""
    report = of_started("preload", tmp_path / "report.json", "syscall", prints=100)
    assert not growing(report)
    (unowned,) = (each for each in report["unowned"] if each["part"] == "mappings")
    (largest,) = unowned["largest"]
    assert largest["name"] == "" and unowned["rise"] <= largest["space"]
    assert report["verdict"] == "incomplete"
    assert (
        "the process grows by memory that belongs to no block and no region that was seen" in report["notes"]
    )
