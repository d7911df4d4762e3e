"""Processes that map a file whose server (FUSE) never answers: each session ends, and says why it could not begin."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fakes.silent_files import serving
from tests.support.workloads import PROGRAM, need

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a file system")

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libanl.so.1")
# Maps the file as code, and with "list" has the dynamic linker's list of libraries (r_debug.r_map, <link.h>) lie there;
# with "below" calls malloc() from code of its own right behind the file, whose first page then may hold that code's unwind table.
TARGET = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, 16384, 5 if len(sys.argv) == 2 else 1, 2, os.open(sys.argv[1], os.O_RDONLY), 0)
allocate = bytearray
if sys.argv[2:] == ["below"]:
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    pages = libc.mmap(None, 8192, 7, 0x22, -1, 0)  # PROT_EXEC and so on, MAP_ANONYMOUS | MAP_PRIVATE
    libc.mmap(pages, 4096, 1, 0x12, os.open(sys.argv[1], os.O_RDONLY), 0)  # MAP_FIXED
    malloc = ctypes.cast(libc.malloc, ctypes.c_void_p).value.to_bytes(8, "little")
    code = bytes.fromhex("4883ec08 48b8") + malloc + bytes.fromhex("ffd0 4883c408 c3")  # sub, mov, call, add, ret
    ctypes.memmove(pages + 4096, code, len(code))
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(pages + 4096)
if sys.argv[2:] == ["list"]:
    debug = ctypes.c_uint64.in_dll(libc, "_r_debug")
    ctypes.c_uint64.from_address(ctypes.addressof(debug) + 8).value = at + 4096
print("mapped", flush=True)
kept = []
while True:
    kept.append(allocate(1009))
    time.sleep(0.05)
"""


@contextmanager
def mapping_a_silent_file(folder: Path, *how: str) -> Iterator[int]:
    with serving(folder / "mounted", LIBRARY) as file:
        command = [sys.executable, "-S", "-E", "-c", TARGET, file.path, *how]
        target = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert target.stdout is not None and target.stdout.readline() == b"mapped\n"
        target.stdout.close()
        file.silence()
        yield target.pid
        target.kill()
    target.wait()  # it closes the file, which waits for the server, too


def measured(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *words, "--duration", "1s"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("tracer", ["bpf", "inline", "plt"])
def test_a_session_is_not_held_up(tracer: str, tmp_path: Path) -> None:
    need("bpf" if tracer == "bpf" else "preload")
    with mapping_a_silent_file(tmp_path) as pid:
        done = measured("--tracer", tracer, "--pid", str(pid))
    if tracer == "plt":  # it reads memory, and of the files none but for names
        assert done.returncode in (0, 6) and "measured: " in done.stdout, done.stderr
    else:
        assert done.returncode == 4
        assert "mounted/file: nothing came from its file system" in done.stderr


def test_memory_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    """The order of the mappings replaces the dynamic linker's list. A read of /proc/PID/mem would stop the process, too."""
    need("bpf")
    with mapping_a_silent_file(tmp_path, "list") as pid:
        done = measured("--tracer", "bpf", "--pid", str(pid))
    assert done.returncode in (0, 6) and "measured: " in done.stdout, done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its code is of x86_64")
def test_the_agent_waits_for_no_unwind_table(tmp_path: Path) -> None:
    need("bpf")
    with mapping_a_silent_file(tmp_path, "below") as pid:
        done = measured("--tracer", "bpf", "--pid", str(pid))
    assert done.returncode == 6 and f"stacks of process {pid} (python" in done.stdout, (
        done.stderr + done.stdout
    )


@pytest.mark.changes_all_code
def test_a_session_of_all_processes_leaves_it_out(tmp_path: Path) -> None:
    need("bpf")
    with mapping_a_silent_file(tmp_path):
        done = measured("--all")
    assert done.returncode in (0, 6), done.stderr
