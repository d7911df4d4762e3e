"""The agent's reading of a process's mappings while those change."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.gcc import gcc

HERE = Path(__file__).resolve().parents[1] / "programs"
AGENT = HERE.parents[2] / "device" / "agent"


def test_maps_are_those_of_the_time_they_give(tmp_path: Path) -> None:
    """Else what was allocated just before a library was replaced is named in the one that came."""
    program = tmp_path / "maps_now"
    sources = [HERE / "maps_now.c", AGENT / "process" / "process_maps.c"]
    flags = ["-std=gnu11", "-O1", "-pthread", f"-I{AGENT}", f"-I{AGENT.parent}"]
    gcc(*flags, *sources, "-o", program)
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_bytes(bytes(4096))
    done = subprocess.run([program, *files, "300"], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "0\n"
