"""Core dumps leave out the shim's segment (their size: tests/proof/test_matrix.py), and mlockall() does not lock it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attaching import attached

MORE_BYTES_MAX = 32 << 20  # of the shim's library and of the pages that it uses
LOCKED = """
import ctypes, sys
assert not ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE
print("ready", flush=True)
kept = [ctypes.CDLL(None).malloc(5003) for _ in sys.stdin.readline()]
print("done", flush=True)
sys.stdin.readline()
"""


def resident_bytes(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def flags_of_segment(pid: int) -> list[str]:
    """VmFlags of proc(5): dd, not in core dumps; lo, locked."""
    text = Path(f"/proc/{pid}/smaps").read_text().partition("/memfd:memleak ")[2]
    return text.partition("VmFlags:")[2].partition("\n")[0].split()


def test_a_program_that_locks_its_memory_keeps_its_size(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("needs root, to lock memory without a limit")
    words = [sys.executable, "-S", "-E", "-c", LOCKED]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        before = resident_bytes(process.pid)
        with attached(process.pid, tmp_path / "report.json", tracer="plt"):
            process.stdin.write("x" * 100 + "\n")
            assert process.stdout.readline() == "done\n"
            assert resident_bytes(process.pid) < before + MORE_BYTES_MAX
            assert "dd" in flags_of_segment(process.pid) and "lo" not in flags_of_segment(process.pid)
        process.kill()
