"""Processes from which the agent still expects data."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.gcc import gcc

HERE = Path(__file__).resolve().parents[1] / "programs"
AGENT = HERE.parents[2] / "device" / "agent"


def test_ends_of_processes_and_of_first_threads(tmp_path: Path) -> None:
    program = tmp_path / "process_set"
    sources = [
        HERE / "process_set.c",
        AGENT / "process" / "process_set.c",
        AGENT / "process" / "thread_states.c",
    ]
    flags = ["-std=gnu11", "-O1", "-g", "-pthread", f"-I{AGENT}", f"-I{AGENT.parent}"]
    gcc(*flags, *sources, "-o", program)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
