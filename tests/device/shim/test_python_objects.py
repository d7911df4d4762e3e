"""Objects of CPython, most of which malloc never sees: an extension's are counted one by one, by every route of the shim."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import attached, waiting
from tests.support.builders.python_extensions import extension, interpreters
from tests.support.workloads import PROGRAMS, need, run

SOURCE = PROGRAMS / "python_extension.c"
ROUNDS = 300
BY_MALLOC = {"large": 2000 * ROUNDS, "raw": 1009 * ROUNDS}
ALL = {**BY_MALLOC, "without_decref": 100 * ROUNDS, "resized": 177 * ROUNDS, "in_dict": 200 * ROUNDS}
RUN = f"import python_extension; python_extension.run({ROUNDS})"
CHURN = "kept = [{'a': i, 'b': [str(i)]} for i in range(20000)]; del kept"


def held(report: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by function of the extension, which keeps as many blocks in each. Without the dictionary's own table and keys."""
    found = Counter[str]()
    for site in report["sites"]:
        own = [f["function"] for f in site["frames"] if f["module"] and "python_extension" in f["module"]]
        called = {frame["function"] for frame in site["frames"]}
        if own and site["inuse_objects"] == ROUNDS and "PyLong_FromLong" not in called:
            found[own[0]] += site["inuse_space"]
    return dict(found)


def started(
    folder: Path,
    code: str,
    *words: str,
    interpreter: str = sys.executable,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    path = {"PYTHONPATH": str(extension(SOURCE, interpreter))}
    command = ("--", interpreter, *words, "-c", code)
    return run(
        "preload", folder, *command, options=options, environment={**path, **(environment or {})}
    ).report


@pytest.mark.parametrize("interpreter", interpreters())
def test_of_each_interpreter(interpreter: str, tmp_path: Path) -> None:
    report = started(tmp_path, f"{RUN}; {CHURN}", interpreter=interpreter)
    assert held(report) == ALL
    assert report["measurement"] == "complete" and report["totals"]["untracked_frees"] == 0
    assert "Python's objects are counted" in "\n".join(report["notes"])


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ([], {"PYTHONMALLOC": "debug"}),  # sets the allocators anew, after the shim has wrapped them
        ([], {"PYTHONMALLOC": "malloc"}),
        (["-X", "tracemalloc"], {}),  # wraps ours
        (["-I", "-X", "importtime"], {}),  # ignores the environment
    ],
)
def test_of_interpreters_with_other_allocators(
    words: Sequence[str], environment: Mapping[str, str], tmp_path: Path
) -> None:
    code = f"import sys; sys.path.append({str(extension(SOURCE, sys.executable))!r}); {RUN}; {CHURN}"
    found = held(started(tmp_path, code, *words, environment=environment))
    debug = 24 * ROUNDS if environment.get("PYTHONMALLOC") == "debug" else 0  # around each block of malloc's
    assert found == {**ALL, "raw": ALL["raw"] + debug}


def test_an_object_and_the_memory_below_it_count_once(tmp_path: Path) -> None:
    report = started(tmp_path, RUN, options=["--mmap"])
    assert held(report) == ALL
    regions = [site for site in report["sites"] if site["kind"] == "mmap"]
    below = {frame["function"] for site in regions for frame in site["frames"]}
    assert not below & {"_PyObject_ArenaMmap", "new_arena", "_PyObject_Malloc"}


def test_python_objects_left_out(tmp_path: Path) -> None:
    report = started(tmp_path, RUN, options=["--no-python-objects"])
    assert held(report) == BY_MALLOC
    assert "Python" not in "\n".join(report["notes"])


@pytest.mark.parametrize(
    "script",
    [f'#!/bin/sh\nexec {sys.executable} "$@"\n', "#!/usr/bin/env -S python3\n", f"#!{sys.executable}\n"],
    ids=["chooses an interpreter", "is run by env", "names its interpreter"],
)
def test_scripts_that_run_python_are_traced_as_python_is(tmp_path: Path, script: str) -> None:
    """As pyenv's shims, and entry points of packages."""
    (tmp_path / "python3").write_text(script)
    (tmp_path / "python3").chmod(0o755)
    report = run("auto", tmp_path, "--", tmp_path / "python3", "-c", "0", codes=(0, 1, 2, 6)).report
    assert report["target"]["tracer"] == "preload"


def test_of_forked_children(tmp_path: Path) -> None:
    code = f"import os, python_extension; os.fork() or python_extension.run({ROUNDS}); os.wait"
    assert held(started(tmp_path, code, options=["--follow"])) == ALL
    assert held(started(tmp_path, code)) == {}


WAITS = f"""
import python_extension, sys, threading
def churns():
    while is_churning:
        {CHURN}
is_churning = True
threads = [threading.Thread(target=churns) for _ in range(3)]
[thread.start() for thread in threads]
print("ready", flush=True)
for line in sys.stdin:
    python_extension.run({ROUNDS})
    print("done", flush=True)
is_churning = False
[thread.join() for thread in threads]
"""


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline"])
def test_of_a_running_interpreter(tracer: str, tmp_path: Path) -> None:
    """Each session counts its own, while other threads allocate."""
    report = tmp_path / "report.json"
    environment = {"PYTHONPATH": str(extension(SOURCE, sys.executable))}
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            with attached(process.pid, report, "--force", tracer=tracer) as session:
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                session.send_signal(2)
                session.communicate(timeout=60)
            assert held(json.loads(report.read_text())) == ALL
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(("below", "tracer"), [([], "plt"), (["strace", "-f", "-o", "/dev/null"], "bpf")])
def test_a_running_interpreter_is_entered_where_it_can_be(
    below: list[str], tracer: str, tmp_path: Path
) -> None:
    """Not where a debugger has it."""
    need("bpf")
    report = tmp_path / "report.json"
    program = [*below, sys.executable, "-uc", "print(); input()"]
    with (
        waiting(program, Path(sys.executable).name) as (_, pid),
        attached(pid, report, tracer="auto") as session,
    ):
        session.send_signal(2)
        _, said = session.communicate(timeout=60)
    assert json.loads(report.read_text())["target"]["tracer"] == tracer
    assert said.count("measuring by ") == (1 if tracer == "plt" else 2)


def test_bpf_says_that_objects_are_missing(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(extension(SOURCE, sys.executable))}
    command = ("--", sys.executable, "-c", RUN)
    report = run("bpf", tmp_path, *command, environment=environment).report
    assert held(report) == BY_MALLOC
    (programs,) = (each for each in report["coverage"] if each["condition"] == "programs")
    assert programs["answer"] == "tolerated"
    assert programs["reasons"][0].startswith(
        "Python's objects of up to 512 bytes were not counted, and its lines not read (--tracer preload"
    )
    by_malloc = run("bpf", tmp_path, *command, environment={**environment, "PYTHONMALLOC": "malloc"}).report
    assert (by_malloc["measurement"], held(by_malloc)) == ("complete", ALL)
