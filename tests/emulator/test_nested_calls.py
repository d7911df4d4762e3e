"""Allocations inside allocations that have not returned: on arm64 a return probe's trampoline stands in their frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.apps import FLAGS
from tests.emulator.compiler import compiled, cross
from tests.emulator.machine import Machine
from tests.emulator.test_sessions import run
from tests.support import nested_calls

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/nested"


@pytest.fixture
def program(machine: Machine) -> Iterator[str]:
    """The program and its allocator on the machine."""
    compiler = cross("aarch64-linux-gnu-gcc")
    library = compiled("libnested.so", compiler, [*FLAGS, "-shared"], [nested_calls.ALLOCATOR])
    flags = [*FLAGS, "-pie", f"-L{library.parent}", "-lnested", "-Wl,-rpath,$ORIGIN"]
    main = compiled("program", compiler, flags, [nested_calls.PROGRAM])
    machine.shell(f"mkdir {REMOTE}")
    for file in (library, main):
        assert machine.adb("push", file, f"{REMOTE}/{file.name}").returncode == 0
    yield f"{REMOTE}/{main.name}"
    machine.shell(f"rm -r {REMOTE}")


def test_each_stack_is_the_program_s(machine: Machine, program: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    allocator = ("-O", f"{REMOTE}/libnested.so", "--symbols-prefix", nested_calls.PREFIX)
    done = run(machine, "--tracer", "bpf", *allocator, "--json", report, "--", program)
    assert done.returncode == 0, done.stderr
    nested_calls.check(json.loads(report.read_text()))
