"""`pytest --memleak`: a library that leaks behind ctypes fails the run, one that does not passes it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.pytest_plugin import INNER, of_extensions
from tests.support.builders.profiles import DECODE, LIBC, MALLOC, frame, profile
from tests.support.oracles.symbols import need

LIBRARY = """
#include <stdlib.h>
void *volatile kept;
void leak(void) { for (int i = 0; i < 23; i++) kept = malloc(1009); }
void keep_nothing(void) { free(malloc(61)); }
"""
TESTS = """
import ctypes, pathlib
library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libnative.so")))
def test_leak(): library.leak()
def test_none(): library.keep_nothing()
def test_fails(): library.keep_nothing(); assert False
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        find_binary("memleakd", local_arch())
    except TracerError as error:
        pytest.skip(str(error))
    (tmp_path / "native.c").write_text(LIBRARY)
    library = ["-o", tmp_path / "libnative.so", tmp_path / "native.c"]
    words = [need("gcc"), "-g", "-O1", "-fPIC", "-shared", *library]
    subprocess.run(words, check=True)
    (tmp_path / "test_native.py").write_text(TESTS)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != INNER}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.proof
def test_a_leaking_test_fails_the_run(folder: Path) -> None:
    done = run(folder, "--memleak", "-k", "leak", "--memleak-output", "run.memleak")
    assert done.returncode == 23, done.stderr
    assert "memleak: FAIL: 23,207 bytes in 23 allocations counted, limit 0 bytes" in done.stderr
    assert "leak+" in done.stderr and "[libnative.so]" in done.stderr
    assert (folder / "run.memleak").exists()
    assert run(folder, "--memleak", "-k", "leak", "--memleak-limit", "23207,23").returncode == 0
    (folder / "known.supp").write_text("leak:libnative.so\n")
    assert run(folder, "--memleak", "-k", "leak", "--memleak-suppressions", "known.supp").returncode == 0


@pytest.mark.proof
def test_what_pytest_says_goes_through(folder: Path) -> None:
    passed = run(folder, "--memleak", "-k", "none")
    assert (passed.returncode, "1 passed" in passed.stdout) == (0, True)
    assert run(folder, "--memleak", "-k", "fails").returncode == pytest.ExitCode.TESTS_FAILED
    assert run(folder, "--memleak", "-k", "no_such_test").returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    missing = run(folder, "--memleak", "-k", "none", "--memleak-suppressions", "no.supp")
    assert missing.returncode == pytest.ExitCode.USAGE_ERROR
    assert "memleak: cannot read no.supp" in missing.stderr


@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("/home/me/venv/lib/python3.12/site-packages/numpy/core/_multiarray.so", True),
        ("/home/me/build/libnative.so", True),
        ("/usr/bin/python3.11", False),
        ("/opt/lib/libpython3.12.so.1.0", False),
        ("/opt/lib/python3.12/lib-dynload/_json.cpython-312.so", False),
        ("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0", False),
    ],
)
def test_what_counts_as_an_extension(module: str, counts: bool) -> None:
    own = replace(frame(LIBC, "f"), module=module)
    python = replace(frame(LIBC, "_PyEval_EvalFrame"), module="/usr/bin/python3.11")
    made = profile(sites=(replace(DECODE, frames=(MALLOC, own, python)),))
    assert bool(of_extensions(made).sites) is counts


def test_without_the_option_nothing_of_the_tool_is_loaded() -> None:
    code = "import memleak_android.host.pytest_plugin, sys; print([m for m in sys.modules if 'numpy' in m or m.endswith('.analysis')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
