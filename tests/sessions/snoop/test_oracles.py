"""Counts beside those of the kernel's own uprobe events, and many functions at once."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oracles.uprobe_counters import uprobe_counters
from tests.support.program_server import run_program
from tests.support.snoop_runs import snoop
from tests.support.workloads import need

pytestmark = [pytest.mark.bpf, pytest.mark.proof]

INTERPRETER = Path("/usr/bin/python3")
LOAD = """
import json, re
for i in range(300):
    json.loads(json.dumps({'a': [1, 2, {'b': i}]}))
    re.sub('a+', 'b', 'xaaay' * 20)
    sorted(str(n) for n in range(100))
"""
ENDLESS = f"import time\nwhile True:\n    time.sleep(0.01)\n{LOAD.replace(chr(10), chr(10) + '    ')}"


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """A file of its own, so that the kernel's counters count this program only."""
    if not INTERPRETER.exists():
        pytest.skip(f"{INTERPRETER} is not installed")
    copy = tmp_path / "python-of-this-test"
    shutil.copy(INTERPRETER.resolve(), copy)
    return copy


def functions_of(program: Path, count: int) -> list[str]:
    """Names of its exported functions that a Python program is likely to call, the same at every run."""
    likely = ("PyObject_", "PyDict_", "PyUnicode_", "PyList_", "PyLong_")
    return [name for name in all_functions(program) if name.startswith(likely)][:count]


def test_counts_of_100_functions_are_those_of_the_kernels_counters(interpreter: Path) -> None:
    need("bpf")
    names = functions_of(interpreter, 100)
    assert len(names) == 100
    with uprobe_counters(interpreter, names) as counts:
        options = [word for name in names for word in ("-f", name)]
        run = snoop(*options, command=[interpreter, "-S", "-c", LOAD])
        expected = counts()
    assert sum(expected.values()) > 10_000
    entries_only = {name for name in names if run.numbers(name)[0] and not run.numbers(name)[1]}
    assert len(entries_only) < 5, "a function that is one jump to another has no return of its own"
    assert {name: run.numbers(name)[:2] for name in names} == {
        name: (n, 0 if name in entries_only else n) for name, n in expected.items()
    }
    assert run.lost == {}


@pytest.fixture
def three_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    if not INTERPRETER.exists():
        pytest.skip(f"{INTERPRETER} is not installed")
    started = [subprocess.Popen([INTERPRETER, "-c", ENDLESS]) for _ in range(3)]
    time.sleep(0.3)
    yield started
    for one in started:
        one.kill()
        one.wait()


def test_1024_functions_in_three_processes(
    three_processes: list[subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them are probed. Prints how long that takes; below 5 s is wanted on an idle machine."""
    names = functions_of(INTERPRETER.resolve(), 4096)
    names += [name for name in all_functions(INTERPRETER.resolve()) if name not in names]
    options = [word for name in names[:1024] for word in ("-f", name)]
    pids = [word for one in three_processes for word in ("--pid", one.pid)]
    need("bpf")
    seconds = seconds_until_placed([*map(str, pids), *options])
    with capsys.disabled():
        print(f"\n3,072 functions probed after {seconds} s", end=" ")
    assert all(one.poll() is None for one in three_processes)


def seconds_until_placed(words: list[str]) -> float:
    done = run_program(["snoop", *words, "--statistics", "--duration", "1s"])
    assert not done.returncode, done.stderr
    armed = next(line for line in done.stderr.splitlines() if "functions probed after" in line)
    assert "3,072 of 3,072" in armed
    return float(armed.partition("after ")[2].split()[0])


def all_functions(program: Path) -> list[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", program], capture_output=True, text=True, check=True)
    return sorted(line.split()[-1] for line in done.stdout.splitlines() if " T " in line)
