"""`pytest --memleak`: native code that leaves memory behind in each run of a test fails the run, other code passes it."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.pytest_plugin import INNER, left_by_tests, of_extensions
from tests.support.builders.profiles import DECODE, LIBC, MALLOC, frame, profile
from tests.support.builders.python_extensions import released
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


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != INNER} | variables
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.proof
def test_a_leaking_test_fails_the_run(folder: Path) -> None:
    done = run(folder, "--memleak", "-k", "leak", "--memleak-output", "run.memleak")
    assert done.returncode == 23, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("memleak: ")]
    assert said[0] == "memleak: LEAKING  each run of 1 test leaves 22.7 KiB in 23 blocks"
    assert said[1] == "memleak: FAIL: 23,207 bytes in 23 allocations counted, limit 0 bytes"
    assert "leak+" in done.stderr and "[libnative.so]" in done.stderr
    assert "in each run of test_native.py::test_leak" in done.stderr
    assert (folder / "run.memleak").exists()
    assert said[-1] == "memleak: measured: every allocation (preload), complete"
    within = run(folder, "--memleak", "-k", "leak", "--memleak-limit", "23207,23")
    assert within.returncode == 0 and said[0] in within.stderr, "the answer, whatever the limit"
    (folder / "known.supp").write_text("leak:libnative.so\n")
    assert run(folder, "--memleak", "-k", "leak", "--memleak-suppressions", "known.supp").returncode == 0


@pytest.mark.proof
def test_what_pytest_says_goes_through(folder: Path) -> None:
    passed = run(folder, "--memleak", "-k", "none")
    assert (passed.returncode, "1 passed" in passed.stdout) == (0, True)
    assert "memleak: NOT GROWING  0 bytes in 0 allocations counted, limit 0 bytes" in passed.stderr
    both = run(folder, "--memleak", "-k", "leak or fails")
    assert both.returncode == pytest.ExitCode.TESTS_FAILED and "memleak: FAIL: 23,207 bytes" in both.stderr
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
    api, python = (
        replace(frame(LIBC, function), module="/usr/bin/python3.11")
        for function in ("PyList_New", "_PyEval_EvalFrameDefault")
    )
    made = profile(sites=(replace(DECODE, frames=(MALLOC, api, own, python)),))
    assert bool(of_extensions(made).sites) is counts
    called_python = profile(sites=(replace(DECODE, frames=(MALLOC, api, python, own)),))
    assert not of_extensions(called_python).sites


@pytest.mark.parametrize(
    ("held", "left"),
    [
        ({1: (30, 3), 2: (50, 5)}, {"a": (40, 4)}),  # in each run but the first
        ({0: (90, 9), 1: (10, 1), 2: (10, 1)}, {"a": (10, 1)}),
        ({0: (90, 9), 2: (10, 1)}, {}),  # a cache that has grown
        ({3: (7, 1)}, {}),  # between tests
        ({4: (7, 1)}, {}),  # of a test that failed in its first run
    ],
)
def test_what_each_run_leaves_behind(
    held: dict[int, tuple[int, int]], left: dict[str, tuple[int, int]]
) -> None:
    spans = [("a", 0), ("a", 1), ("a", 2), ("", 2), ("b", 0), ("", 0)]
    assert left_by_tests({"site": held}, spans) == ({"site": left} if left else {})


RELEASED = """
import random
import pytest

@pytest.mark.parametrize("number", [3, 4])
def test_rapidjson(number):
    rapidjson = pytest.importorskip("rapidjson")
    for _ in range(23):
        with pytest.raises(TypeError):
            rapidjson.RawJSON(number)
    rapidjson.loads(rapidjson.dumps({"a": [number, "x" * number]}))

class Full:
    def write(self, text):
        raise OSError("no space")

def test_ujson():
    ujson = pytest.importorskip("ujson")
    for _ in range(23):
        with pytest.raises(OSError):
            ujson.dump({"a": "x" * 1000}, Full())
    ujson.loads(ujson.dumps([1, "a"]))

def test_lz4():
    lz4 = pytest.importorskip("lz4.frame")
    good = lz4.compress(random.Random(1).randbytes(3000) + b"a" * 60000, block_size=lz4.BLOCKSIZE_MAX64KB)
    for _ in range(23):
        with pytest.raises(RuntimeError):
            lz4.decompress(good[:20] + bytes([255] * 20) + good[40:])
    lz4.decompress(good)
"""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("package", "faulty", "mended", "blocks", "function", "tests"),
    [
        ("python-rapidjson", "1.23", "1.24", 46, "RawJSON_new", ["test_rapidjson[3]", "test_rapidjson[4]"]),
        ("ujson", "5.12.0", "5.12.1", 23, "objToJSON", ["test_ujson"]),
        ("lz4", "4.0.1", "4.0.2", 23, "__decompress", ["test_lz4"]),
    ],
)
def test_released_extensions(
    package: str, faulty: str, mended: str, blocks: int, function: str, tests: list[str], tmp_path: Path
) -> None:
    """What was reported to their authors is found, and is gone in the next release."""
    (tmp_path / "test_released.py").write_text(RELEASED)
    done = run(tmp_path, "--memleak", PYTHONPATH=str(released(package, faulty)))
    assert done.returncode == 23, done.stderr
    assert f"bytes in {blocks} allocations counted" in done.stderr and function in done.stderr
    named = re.findall(r"in each run of test_released.py::(\S+)", done.stderr)
    assert named == tests
    passed = run(tmp_path, "--memleak", PYTHONPATH=str(released(package, mended)))
    assert passed.returncode == 0, passed.stderr
    once = run(tmp_path, "--memleak", "--memleak-runs", "1", PYTHONPATH=str(released(package, mended)))
    assert once.returncode == 23, once.stderr  # what it made when it was imported


COUNTED = """
import pathlib, pytest
runs = pathlib.Path(__file__).with_name("runs")
@pytest.fixture
def fresh(tmp_path):
    (tmp_path / "x").mkdir()
    yield tmp_path
    runs.open("a").write("down ")
@pytest.mark.parametrize("fails", [False, True])
def test_runs(fresh, fails):
    runs.open("a").write("run ")
    assert not fails
"""


@pytest.mark.proof
def test_each_run_has_fixtures_of_its_own_and_the_first_failure_ends_them(folder: Path) -> None:
    (folder / "test_native.py").write_text(COUNTED)
    done = run(folder, "--memleak", "--memleak-runs", "3")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in done.stdout
    assert (folder / "runs").read_text().split() == ["run", "down"] * 4


def test_without_the_option_nothing_of_the_tool_is_loaded() -> None:
    code = "import memleak_android.host.pytest_plugin, sys; print([m for m in sys.modules if 'numpy' in m or m.endswith('.analysis')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
