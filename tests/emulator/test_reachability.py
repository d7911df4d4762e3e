"""`--reachability` over adb: the agent searches memory on the device; the kinds are those that valgrind finds of the same program here."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.phone.compiler import compiled, cross
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import APP, check_clean, run
from tests.host.session.test_reachability import KINDS, judged_by_valgrind, kinds_of, program

pytestmark = pytest.mark.emulator

__all__ = ("program",)  # a fixture
SOURCE = Path(__file__).parents[1] / "support" / "programs" / "reachable_blocks.c"
REMOTE = "/data/local/tmp/blocks"
# A random word of 32 bits meets an address inside a lost block by chance, and makes it possibly lost: other processes decide.
PROCESSES = {"arm64": 1, "arm32": 3}
COMPILERS = {"arm64": "aarch64-linux-gnu-gcc", "arm32": "arm-linux-gnueabihf-gcc"}


@pytest.fixture(scope="module")
def judged(program: Path) -> Counter[tuple[str, int]]:
    return judged_by_valgrind(program)


def pushed(machine: Machine, arch: str) -> str:
    made = compiled(f"blocks-{arch}", cross(COMPILERS[arch]), ("-O0", "-pthread", "-std=gnu11"), [SOURCE])
    path = f"{REMOTE}-{arch}"
    assert machine.adb("push", made, path).returncode == 0
    return path


def expected(judged: Counter[tuple[str, int]], arch: str) -> Counter[tuple[str, int]]:
    """libc's own block of the thread, a table of pointers, is half as large where these are of 4 bytes."""
    thread = ("possibly_lost", 288)
    assert judged[thread] == 1
    if arch != "arm32":
        return judged
    return judged - Counter([thread]) + Counter([("possibly_lost", 144)])


def looked_at(machine: Machine, tmp_path: Path, *words: str) -> tuple[dict[str, Any], str]:
    path = tmp_path / "report.json"
    done = run(machine, "--reachability", "--json", path, *words)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    return report, done.stderr  # the program has stdout


@pytest.mark.parametrize(
    ("tracer", "arch", "ends"),
    [
        *(("bpf", "arm64", False), ("preload", "arm32", False), ("preload", "arm64", True)),
        *(
            pytest.param(*one, marks=pytest.mark.proof)
            for one in (("preload", "arm64", False), ("bpf", "arm64", True), ("preload", "arm32", True))
        ),
    ],
)
def test_a_program(
    machine: Machine, program: Path, tracer: str, arch: str, ends: bool, tmp_path: Path
) -> None:
    """It is held where its memory still is, or stopped while it runs."""
    how = (
        ("--", pushed(machine, arch), "0")
        if ends
        else ("--duration", "2s", "--", pushed(machine, arch), "600")
    )
    judged = judged_by_valgrind(program)
    assert {kind for kind, _ in judged} == KINDS
    for _ in range(PROCESSES[arch]):
        (tmp_path / "report.json").unlink(missing_ok=True)
        report, out = looked_at(machine, tmp_path, "--tracer", tracer, *how)
        machine.root_shell(f"kill -9 {report['target']['pid']}")
        if kinds_of(report) == expected(judged, arch):
            break
    assert kinds_of(report) == expected(judged, arch)
    said = "the command was held at its end" if ends else r"2 threads stood still for \d+\.\d ms"
    assert re.search(said, out), out
    check_clean(machine, APP)
