"""Runs of `--kernel` beside a program that makes the kernel hold memory."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gcc import gcc
from tests.support.workloads import BUILT, FLAGS, PROGRAM, need

WORKLOADS = Path(__file__).parent / "programs"
Measure = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def held() -> Path:
    return _build("held")


@pytest.fixture(scope="session")
def outlive() -> Path:
    return _build("outlive")


def _build(name: str) -> Path:
    source = WORKLOADS / f"{name}.c"
    BUILT.mkdir(parents=True, exist_ok=True)
    target = BUILT / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        own = target.with_name(f"{target.name}.{os.getpid()}")
        gcc(*FLAGS, "-o", own, source)
        own.rename(target)
    return target


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
            tracer = [
                *PROGRAM,
                *(words or ("--kernel",)),
                *target,
                "--interval",
                "1s",
                "--json",
                str(report_file),
            ]
            with subprocess.Popen(
                tracer, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as session:
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
        parsed: dict[str, Any] = json.loads(report_file.read_text())
        return parsed

    return run


def need_kernel() -> None:
    need("bpf")
    if os.geteuid() != 0:
        pytest.skip("the kernel's allocators can be watched by root only")


def _say(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


def _wait_for_output(session: subprocess.Popen[str]) -> None:
    assert session.stdout is not None
    ready, _, _ = select.select([session.stdout], [], [], 120)
    assert ready, "no interval print came"
    assert session.stdout.readline(), session.stderr.read() if session.stderr else ""
