"""Our program attached to a running process, and what its probes did to the process's code."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.program_server import start_program
from tests.support.workloads import need

BREAKPOINT = 0xCC  # int3


@contextmanager
def waiting(
    argv: Sequence[str | Path], name: str, **how: Any
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program that has written its first line, and the pid of it, or of its descendant called `name`."""
    process = subprocess.Popen(
        list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how
    )
    try:
        if not process.stdout.readline():
            pytest.skip(f"{argv[0]} does not run here: {process.stderr.read().decode().strip()}")
        yield process, descendant(process.pid, name)
    finally:
        if process.returncode is None:
            process.kill()
            process.communicate()


def descendant(pid: int, name: str) -> int:
    """`pid`, or one of its descendants, whose command is `name`."""
    waiting = [pid]
    for one in waiting:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if Path(f"/proc/{one}/comm").read_text().strip() == name:
                return one
            threads = Path(f"/proc/{one}/task").glob("*/children")
            waiting += [int(child) for file in threads for child in file.read_text().split()]
    raise AssertionError(f"no {name}")


@contextmanager
def attached(
    pid: int, report: Path, *options: str | Path, tracer: str = "bpf", **how: Any
) -> Iterator[subprocess.Popen[str]]:
    """`--tracer TRACER --pid PID --json REPORT`, from when its probes are set; killed in the end."""
    need(tracer)
    words = ["--tracer", tracer, "--pid", pid, "--interval", "100ms", "--json", report, *options]
    process = start_program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
    try:
        first = process.stdout.readline()  # the first interval print: the agent runs
        assert first, process.stderr.read()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.communicate()


def run_attached(
    tracer: str, argv: Sequence[str | Path], report: Path, **how: Any
) -> tuple[int, bytes, dict[str, Any]]:
    """A program that says when it is ready and goes on at a line: its exit code, its output from then on, and the report."""
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, **how) as process:
        assert process.stdout.readline() == b"ready\n"
        with attached(process.pid, report, tracer=tracer) as session:
            out, _ = process.communicate(b"\n", timeout=120)
            session.communicate(timeout=120)  # a report may be long
            assert session.returncode in (0, 6)
    return process.returncode, out, json.loads(report.read_text())


def result(process: subprocess.Popen[str], report: Path) -> dict[str, Any]:
    """The report of a session that ends by itself."""
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(report.read_text())


def children_of(pid: int) -> dict[int, str]:
    """The children of all threads of a process, and their words."""
    lists = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return {int(child): Path(f"/proc/{child}/cmdline").read_text(errors="replace") for child in lists.split()}


def agents_of(pid: int) -> list[int]:
    """The children of our program that are its agent."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if _comm(child) == "memleakd"]


def _comm(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def changed_code(pid: int) -> dict[int, int]:
    """Address → byte, wherever the code of a process is not what its files say."""
    changed: dict[int, int] = {}
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, offset, _, inode, *_ = line.split(maxsplit=5)
            if "x" not in rights or inode == "0":
                continue
            low, high = (int(each, 16) for each in span.split("-"))
            with open(f"/proc/{pid}/map_files/{span}", "rb") as file:
                wanted = os.pread(file.fileno(), high - low, int(offset, 16))
            found = os.pread(memory.fileno(), len(wanted), low)
            now, before = (np.frombuffer(code, np.uint8) for code in (found, wanted[: len(found)]))
            changed |= {low + int(i): int(now[i]) for i in np.flatnonzero(now != before)}
    return changed


def until(holds: Callable[[], bool], patience_s: float = 100) -> bool:
    deadline = time.monotonic() + patience_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def until_unchanged(pid: int, patience_s: float = 100) -> dict[int, int]:
    """Returns the changes left in a process's code once it is quiet, or after the timeout."""
    until(lambda: not changed_code(pid), patience_s)
    return changed_code(pid)


def until_ended(pid: int, patience_s: float = 100) -> bool:
    """Whether a process ends within the patience; a zombie has ended."""
    return until(lambda: not is_running(pid), patience_s)


def interrupt(process: subprocess.Popen[Any]) -> None:
    """SIGINT, until it has been taken and the process waits again: a second one before that would be the same one."""
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        is_pending = (int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)) >> (signal.SIGINT - 1) & 1
        if not is_pending and status["State"][0] in "SZ":
            return
        time.sleep(0.01)
    raise AssertionError(f"pid {process.pid} takes no SIGINT")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
