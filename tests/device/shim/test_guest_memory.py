"""The shim's segment is no part of a core dump, and a program that locks its memory does not hold its pages."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attaching import attached
from tests.support.workloads import PROGRAM, need

CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
MORE_BYTES_MAX = 32 << 20  # of the shim's library and of the pages that it uses
LOCKED = """
import ctypes, sys
assert not ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE
print("ready", flush=True)
kept = [ctypes.CDLL(None).malloc(5003) for _ in sys.stdin.readline()]
print("done", flush=True)
sys.stdin.readline()
"""


def core_bytes(folder: Path, *before: str) -> int:
    """Size of the core file of a program that aborts."""
    folder.mkdir()
    words = [*before, sys.executable, "-S", "-E", "-c", "import os; os.abort()"]
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, unlimited),
    )
    (core,) = folder.glob("core*")
    return core.stat().st_size


def test_a_core_dump_is_as_large_as_without_it(tmp_path: Path) -> None:
    need("preload")
    if os.getuid() or "/" in CORE_PATTERN.read_text() or "|" in CORE_PATTERN.read_text():
        pytest.skip(f"needs root, and core files in the program's folder ({CORE_PATTERN})")
    alone = core_bytes(tmp_path / "alone")
    measured = core_bytes(tmp_path / "measured", *PROGRAM, "-q", "--tracer", "preload", "--")
    assert alone <= measured + MORE_BYTES_MAX and measured <= alone + MORE_BYTES_MAX


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
