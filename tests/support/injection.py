"""Programs that are entered while they run, and what the agent says of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.gcc import gcc
from tests.support.preload_session import find_parts
from tests.support.workloads import BUILT, FLAGS, ROOT

SOURCES = ROOT / "tests" / "device" / "programs"


@dataclass(frozen=True, slots=True)
class Entered:
    """One injection: what the function returned, or the refusal. Times in nanoseconds."""

    exit_code: int
    refusal: str
    result: int = 0
    n_threads: int = 0
    n_attempts: int = 0
    longest_stop_ns: int = 0
    call_ns: int = 0


def inject(pid: int, library: Path, function: str, *argument: str, before: Sequence[str] = ()) -> Entered:
    """`memleakd inject`, run behind `before`. Raises TimeoutExpired after 30 s."""
    agent, _ = find_parts()
    words = [*before, agent, "inject", str(pid), library, function, *argument]
    run = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if run.returncode:
        return Entered(run.returncode, run.stderr.strip())
    first, *stops = run.stdout.splitlines()
    durations: dict[str, list[int]] = {
        "1": [0],
        "2": [0],
    }  # 1: of all threads, 2: of the one that made the call
    for line in stops:
        _, stopped, _, duration_ns, _ = line.split()
        durations[stopped].append(int(duration_ns))
    return Entered(0, "", *map(int, first.split()), max(durations["1"]), max(durations["2"]))


def target(*flags: str) -> Path:
    return compiled("injection_target.c", *flags)


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
        [*before, target(*flags), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        assert process.stdout is not None
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


@cache
def compiled(source: str, *flags: str) -> Path:
    """One of tests/device, as a program or what `flags` make of it."""
    BUILT.mkdir(parents=True, exist_ok=True)
    output = BUILT / "-".join((Path(source).stem, *(Path(word).name for word in flags)))
    own = output.with_name(f"{output.name}.{os.getpid()}")
    gcc(*FLAGS, "-o", own, SOURCES / source, *flags)
    own.rename(output)
    return output
