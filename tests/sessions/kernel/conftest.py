"""Runs of `--kernel` beside a program that makes the kernel hold memory."""

import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.program_server import start_program
from tests.support.workloads import built, need

WORKLOADS = Path(__file__).parent / "programs"
Measure = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def held() -> Path:
    return built(WORKLOADS / "held")


@pytest.fixture
def measured(held: Path, tmp_path: Path) -> Measure:
    """measured(what, count, *words, whole=False): the report.json of a session in which the program took its memory."""
    need_kernel()

    def run(what: str, count: int, *words: str, whole: bool = False) -> dict[str, Any]:
        report_file = tmp_path / "report.json"
        argv = [str(held), what, str(count)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            target = [] if whole else ["--pid", str(program.pid)]
            # An interval print says that the session runs: then the program may begin.
            how = ("--interval", "1s", "--json", str(report_file))
            tracer = [*(words or ("--kernel",)), *target, *how]
            with start_program(tracer, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as session:
                try:
                    _wait_for_output(session)
                    _say(program)
                    assert program.stdout is not None and program.stdout.readline() == "held\n"
                    time.sleep(1.0)
                finally:
                    session.send_signal(2)
                    _, errors = session.communicate(timeout=120)
                    _say(program)
        assert session.returncode in (0, 6), errors
        return json.loads(report_file.read_text())

    return run


def need_kernel() -> None:
    need("bpf")
    if os.geteuid() != 0:
        pytest.skip("the kernel's allocators can be watched by root only")


def _say(program: subprocess.Popen[str]) -> None:
    program.stdin.write("\n")
    program.stdin.flush()


def _wait_for_output(session: subprocess.Popen[str]) -> None:
    ready, _, _ = select.select([session.stdout], [], [], 120)
    assert ready, "no interval print came"
    assert session.stdout.readline(), session.stderr.read() if session.stderr else ""
