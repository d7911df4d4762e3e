"""Roots of their own for a program: a folder with its dynamic linker and C library, and ways to run it in there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workloads import build

MUSL_LINKER = Path("/lib/ld-musl-x86_64.so.1")
GLIBC = (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/x86_64-linux-gnu/libc.so.6"))
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]

# As in a container engine: another root, the old one out of reach. mount(2), pivot_root(2).
PIVOT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
top, private, bind = os.fsencode(sys.argv[1]), 1 << 18 | 1 << 14, 1 << 12 | 1 << 14
def check(result):
    if result: sys.exit(os.strerror(ctypes.get_errno()))
check(libc.mount(b"none", b"/", None, private, None))
check(libc.mount(top, top, None, bind, None))
os.chdir(top)
os.mkdir("old")
check(libc.syscall(155, b".", b"old"))
check(libc.umount2(b"/old", 2))
os.chdir("/")
os.execv(sys.argv[2], sys.argv[2:])
"""


def need_namespaces() -> None:
    words = [*NAMESPACES, "true"]
    if shutil.which("unshare") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mount and pid namespaces of its own are not allowed here")


def in_container(root: Path, *argv: str) -> list[str | Path]:
    """The command that runs `argv`, paths as in `root`, as a container of its own."""
    return [*NAMESPACES, sys.executable, "-c", PIVOT, root, *argv]


def make_root(folder: Path, libc: str, workload: str, program: str) -> Path:
    """`folder`/root with the workload as /`program`. libc: "musl" or "glibc"."""
    if os.geteuid() != 0:
        pytest.skip("another root needs root")
    root = folder / "root"
    root.mkdir()
    if libc == "musl":
        build(workload, root, output=program, compiler="musl-gcc")
        if not MUSL_LINKER.exists():
            pytest.skip(f"no {MUSL_LINKER} here")
        files = [MUSL_LINKER]
    else:
        build(workload, root, output=program)
        files = list(GLIBC)
    for file in files:
        (root / str(file.parent)[1:]).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / str(file)[1:])
    return root
