"""Runs the program as a user does, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.program_server import run_program, start_program

FAKE_AGENT = Path(__file__).parent / "fakes" / "agent.py"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """folder: where the program runs, keeps its cache, and finds its agent. scenario: see fakes/agent.py."""

    folder: Path

    def __post_init__(self) -> None:
        agent, shim = self.folder / "memleakd", self.folder / "shim.so"
        agent.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_AGENT}" "$@"\n')
        agent.chmod(0o755)
        shim.touch()

    def environment(self, scenario: dict[str, Any]) -> dict[str, str]:
        return {
            **os.environ,
            "MEMLEAKD": str(self.folder / "memleakd"),
            "MEMLEAK_SHIM": str(self.folder / "shim.so"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "FAKE_AGENT": json.dumps(scenario),
            "TMPDIR": str(self.folder),
        }

    def start(
        self, *words: object, scenario: dict[str, Any] | None = None, **how: Any
    ) -> subprocess.Popen[str]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
        environment = self.environment(scenario or {})
        return start_program(
            _by_frame_pointers(words), cwd=self.folder, env=environment, text=True, **streams
        )

    def run(self, *words: object, scenario: dict[str, Any] | None = None) -> Finished:
        done = run_program(_by_frame_pointers(words), self.folder, self.environment(scenario or {}), 60)
        return Finished(done.returncode, done.stdout, done.stderr)


def _by_frame_pointers(words: tuple[object, ...]) -> list[str]:
    """A session's stacks are whole by frame pointers: there is no file with CFI behind what the fake agent sends."""
    line = [str(word) for word in words]
    if "--tracer" in line and "--unwind" not in line:
        at = line.index("--tracer")
        line[at:at] = ["--unwind", "fp"]
    return line


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one error line."""
        prefix = "memleak-android: error: "
        (line,) = (line for line in self.err.splitlines() if line.startswith(prefix))
        return line.removeprefix(prefix)


# `unwind FOLDER OPTION…` (the fixture of tests/host/conftest.py)
Unwind = Callable[..., Finished]
