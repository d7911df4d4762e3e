"""Return addresses replaced by return probes on a link-register machine, restored by the agent."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.gcc import gcc

HERE = Path(__file__).resolve().parents[1] / "programs"
DEVICE = HERE.parents[2] / "device"


def test_hidden_return_addresses(tmp_path: Path) -> None:
    program = tmp_path / "trampolines"
    sources = [HERE / "trampolines.c", DEVICE / "agent" / "bpf" / "trampolines.c"]
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    folders = [f"-I{DEVICE}", f"-I{DEVICE / 'agent'}", f"-I{DEVICE / 'cfi'}"]
    gcc(*flags, *folders, *sources, "-o", program)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
