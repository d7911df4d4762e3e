"""Programs that are entered while they run, and what the agent says of it."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.attached_session import workload
from tests.support.preload_session import find_parts
from tests.support.workloads import ROOT, built

SOURCES = ROOT / "tests" / "device" / "programs"


@dataclass(frozen=True, slots=True)
class Entered:
    """One injection: what the function returned, or the refusal."""

    exit_code: int
    refusal: str
    result: int = 0
    n_threads: int = 0


def inject(pid: int, library: Path, function: str, *argument: str, before: Sequence[str] = ()) -> Entered:
    """`memleakd inject`, run behind `before`. Raises TimeoutExpired after 30 s."""
    agent, _ = find_parts()
    words = [*before, agent, "inject", str(pid), library, function, *argument]
    run = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if run.returncode:
        return Entered(run.returncode, run.stderr.strip())
    result, n_threads, _ = map(int, run.stdout.splitlines()[0].split())
    return Entered(0, "", result, n_threads)


def library() -> Path:
    return compiled("injected_library.c", "-shared", "-fPIC")


@contextmanager
def running(
    *words: str,
    flags: tuple[str, ...] = (),
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The target, run behind `before`, once it is ready, and its first line. environment: added to ours."""
    process = subprocess.Popen(
        [*before, workload(*flags), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        first = process.stdout.readline()
        if process.poll() == 77 or not first:
            pytest.skip(f"the target does not run here: {words}")
        yield process, first
    finally:
        if process.returncode is None:
            process.kill()
            process.communicate()


def last_words(process: subprocess.Popen[str]) -> str:
    """Returns the target's own report, printed when it is asked to end."""
    return process.communicate("x", timeout=30)[0].strip()


def compiled(source: str, *flags: str) -> Path:
    """One of tests/device, as a program or what `flags` make of it."""
    return built(SOURCES / source, *flags)
