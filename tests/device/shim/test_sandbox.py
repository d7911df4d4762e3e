"""Programs that forbid themselves system calls: the shim reads filters as the kernel does, and knows all calls of its own."""

import re
import subprocess
from pathlib import Path

from tests.sessions.bionic.test_system_calls import SHIM, made
from tests.support.gcc import compiled

PARTS = Path(__file__).resolve().parents[1] / "programs" / "parts"
NAMED = re.compile(r"X\((\w+)\)")
# Named by other names, or made before a program can have a sandbox of its own.
AT_THE_START = {"mmap", "mmap2", "ftruncate", "ftruncate64", "geteuid", "geteuid32"}
OF_THE_PROGRAM = {"prctl", "seccomp", "mlockall", "mremap", "write"}  # forwarded, or allowed in strict mode


def test_filters_are_read_as_the_kernel_reads_them(tmp_path: Path) -> None:
    program = compiled(
        tmp_path / "filters",
        *("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{SHIM.parent}"),
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        *(PARTS / "filters.c", *(SHIM / "freestanding" / name for name in ("sandbox.c", "seccomp_filter.c"))),
    )
    out = subprocess.run([program, "600", "7"], capture_output=True, text=True, check=True).stdout
    allowed, killed = map(int, re.findall(r"\d+", out))
    assert allowed > 100 and killed > 50  # and no line about a filter


def test_every_system_call_of_the_shim_is_in_the_list() -> None:
    listed = set(NAMED.findall((SHIM / "freestanding" / "sandbox.h").read_text()))
    files = [path for path in SHIM.rglob("*.[ch]") if path.parent.name != "linked"]
    assert set().union(*map(made, files)) - AT_THE_START - OF_THE_PROGRAM == listed
