"""The compiler of this machine, zig's clang for others, and the scripts of the build."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from memleak_android.unwind import Module

DEVICE = Path(__file__).resolve().parents[2] / "device"
NDK_BUILD = DEVICE.with_name("ndk-build")


def gcc(*arguments: str | Path, cwd: Path | None = None) -> None:
    """Compiles; skips the test if gcc is not installed."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed (apt-get install gcc)")
    subprocess.run(["gcc", *arguments], cwd=cwd, check=True)


def compiled(output: Path, *arguments: str | Path) -> Path:
    """What gcc makes of the arguments, renamed to `output` once it is whole: other workers make the same file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    own = output.with_name(f"{output.name}.{os.getpid()}")
    gcc("-o", own, *arguments)
    return own.rename(output)


def arm64_library(folder: Path, program: str, *flags: str) -> Module:
    """C code without includes as an arm64 library with CFI for every instruction. Skips the test where there is no zig."""
    pytest.importorskip(
        "ziglang", reason="ziglang, which compiles for arm64, is not installed (pip install ziglang)"
    )
    (folder / "code.c").write_text(program)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu", "-shared", "-fPIC"]
    command += ["-nostdlib", "-fasynchronous-unwind-tables", "-fno-sanitize=all", "-g0", *flags]
    subprocess.run([*command, "-o", folder / "code.so", folder / "code.c"], check=True)
    return Module.from_path(folder / "code.so")


def sanitized(output: Path, sanitizer: str, *words: str | Path) -> Path:
    """A program of the device's own sources under a sanitizer, which run_sanitized() runs; skips without setarch."""
    if shutil.which("setarch") is None:
        pytest.skip("setarch is not installed")
    flags = ["-std=gnu11", "-D_GNU_SOURCE=", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    flags += [
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        f"-I{DEVICE}",
        f"-I{DEVICE / 'preload'}",
        f"-I{DEVICE / 'agent'}",
    ]
    gcc(*flags, *words, "-o", output)
    return output


def run_sanitized(*words: str | Path, timeout_s: float = 60, **environment: str) -> None:
    """Runs a program at fixed addresses, which the thread sanitizer needs; it must end well and report nothing."""
    done = subprocess.run(
        ["setarch", "-R", *words],
        check=False,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert (done.returncode, done.stderr) == (0, ""), (words, done.returncode, done.stderr[-4000:])


def ndk_build(name: str) -> ModuleType:
    """ndk-build/{name}.py, which belongs to no package."""
    spec = importlib.util.spec_from_file_location(f"ndk_build_{name}", NDK_BUILD / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
