"""C code compiled for arm64 by zig's clang, which needs no sysroot for code without includes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memleak_android.unwind import Module


def shared_library(folder: Path, program: str, *flags: str) -> Module:
    """C code as an arm64 library with CFI for every instruction. Skips the test where there is no compiler."""
    (folder / "code.c").write_text(program)
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "aarch64-linux-gnu",
        "-shared",
        "-fPIC",
        "-nostdlib",
    ]
    command += ["-fasynchronous-unwind-tables", "-fno-sanitize=all", "-g0", *flags]
    done = subprocess.run(
        [*command, "-o", folder / "code.so", folder / "code.c"], check=False, capture_output=True, text=True
    )
    if "No module named ziglang" in done.stderr:
        pytest.skip("ziglang, which compiles for arm64, is not installed (pip install ziglang)")
    assert done.returncode == 0, done.stderr
    return Module.from_path(folder / "code.so")
