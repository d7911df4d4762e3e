"""The shim's own code under sanitizers, recording a program by its slots: threads, forks and signals meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.profile.profile import Verdict
from memleak_android.host.recording.read import read_profile

HERE = Path(__file__).resolve().parent
DEVICE = HERE.parents[2] / "device"
FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{DEVICE / 'preload' / 'include'}",
)
SHIM_FLAGS = ("-D_GNU_SOURCE=", "-fvisibility=hidden", "-fno-builtin", "-Wno-tsan", f"-I{DEVICE}")
SHIM_LINKING = ("-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-Bsymbolic")
READ = range(5, 100, 10)  # of its hundred recordings


def build(folder: Path, sanitizer: str) -> list[Path]:
    """The words of the command line, to which folder and mode come. All but the host are loaded late, as in an app."""
    if shutil.which("gcc") is None or shutil.which("setarch") is None:
        pytest.skip("gcc or setarch is not installed")
    shim, app, host = folder / "libmemleak.so", folder / "app", folder / "host"
    gcc = ["gcc", *FLAGS, f"-fsanitize={sanitizer}"]
    sources = [*sorted((DEVICE / "preload").rglob("*.c")), *sorted((DEVICE / "cfi").glob("*.c"))]
    library = ["-shared", "-fPIC"]
    subprocess.run([*gcc, *SHIM_FLAGS, *library, *SHIM_LINKING, "-o", shim, *sources], check=True)
    subprocess.run([*gcc, *library, "-o", app, HERE / "stress.c", shim, f"-Wl,-rpath,{folder}"], check=True)
    subprocess.run([*gcc, "-o", host, HERE / "host.c", "-ldl"], check=True)
    return [host, app]


@pytest.mark.proof
@pytest.mark.parametrize(("sanitizer", "mode"), [("thread", "settled"), ("address,undefined", "")])
def test_begun_and_ended_under_threads_forks_and_signals(tmp_path: Path, sanitizer: str, mode: str) -> None:
    options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "die_after_fork=0"}
    words = ["setarch", "-R", *build(tmp_path, sanitizer), tmp_path, mode]
    done = subprocess.run(
        words, env=os.environ | options, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    profiles = [read_profile(tmp_path / f"{number}.memleak", View()) for number in READ]
    incomplete = [profile for profile in profiles if profile.verdict != Verdict.OK]
    assert [
        profile.notes for profile in incomplete if not profile.totals.lost
    ] == []  # a slow machine loses evidence
    assert sum(profile.totals.alloc_objects or 0 for profile in profiles) > len(READ)
