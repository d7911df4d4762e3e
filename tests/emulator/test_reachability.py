"""`--reachability` over adb: the agent searches memory on the device; the kinds are those that valgrind finds of the same program here."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.compiler import compiled, cross
from tests.emulator.machine import Machine
from tests.emulator.test_sessions import APP, check_clean, run
from tests.host.session.test_reachability import KINDS, judged, kinds_of, program

pytestmark = pytest.mark.emulator

__all__ = ("judged", "program")  # fixtures
SOURCE = Path(__file__).parents[1] / "support" / "programs" / "reachable_blocks.c"
REMOTE = "/data/local/tmp/blocks"
# A random word of 32 bits meets an address inside a lost block by chance, and makes it possibly lost: other processes decide.
PROCESSES = {"arm64": 1, "arm32": 3}
COMPILERS = {"arm64": "aarch64-linux-gnu-gcc", "arm32": "arm-linux-gnueabihf-gcc"}


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
    return report, done.stdout


@pytest.mark.parametrize(
    ("tracer", "arch"),
    [("bpf", "arm64"), pytest.param("preload", "arm64", marks=pytest.mark.proof), ("preload", "arm32")],
)
def test_a_program_that_runs(
    machine: Machine, judged: Counter[tuple[str, int]], tracer: str, arch: str, tmp_path: Path
) -> None:
    path = pushed(machine, arch)
    words = ("--tracer", tracer, "--duration", "2s", "--", path, "600")
    assert {kind for kind, _ in judged} == KINDS
    for _ in range(PROCESSES[arch]):
        (tmp_path / "report.json").unlink(missing_ok=True)
        report, out = looked_at(machine, tmp_path, *words)
        machine.root_shell(f"kill -9 {report['target']['pid']}")
        if kinds_of(report) == expected(judged, arch):
            break
    assert kinds_of(report) == expected(judged, arch)
    assert re.search(r"2 threads stood still for \d+\.\d ms", out)
    check_clean(machine, APP)


@pytest.mark.parametrize(
    ("tracer", "arch"),
    [
        pytest.param("bpf", "arm64", marks=pytest.mark.proof),
        ("preload", "arm64"),
        pytest.param("preload", "arm32", marks=pytest.mark.proof),
    ],
)
def test_a_program_that_ends(
    machine: Machine, judged: Counter[tuple[str, int]], tracer: str, arch: str, tmp_path: Path
) -> None:
    """It is held where its memory still is."""
    path = pushed(machine, arch)
    report, out = looked_at(machine, tmp_path, "--tracer", tracer, "--", path, "0")
    assert kinds_of(report) == expected(judged, arch)
    assert "the command was held at its end" in out
    check_clean(machine, APP)
