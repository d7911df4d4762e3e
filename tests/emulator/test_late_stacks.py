"""On a device: stacks longer than their slices, and allocations inside allocations that have not returned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.phone.apps import FLAGS
from tests.emulator.phone.compiler import compiled
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import run
from tests.support import late_stacks
from tests.support.workloads import TRACERS

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/stacks"
ROUNDS = "20"
COMPILER = ("aarch64-linux-gnu-gcc",)


@pytest.fixture
def program(machine: Machine) -> Iterator[str]:
    flags = [*FLAGS, "-O2", "-fno-optimize-sibling-calls", "-pthread", "-pie"]
    main = compiled("late_stacks", COMPILER, flags, [late_stacks.PROGRAM])
    with machine.holding(REMOTE, main):
        yield f"{REMOTE}/{main.name}"


@pytest.mark.parametrize("tracer", TRACERS)
def test_the_parent_is_that_of_the_call(machine: Machine, program: str, tracer: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--tracer", tracer, *late_stacks.OPTIONS, "--json", report)
    done = run(machine, *words, "--", program, "calls", ROUNDS)
    assert done.returncode in (0, 6), done.stderr  # 6: most stacks had changed when they were read
    sites = late_stacks.own_sites(json.loads(report.read_text()))
    late_stacks.check_parents(sites)
    for site in sites:
        if tracer == "preload":
            assert site["end"] != late_stacks.CUT and site["frames"][-1]["method"] != "late"
        elif site["end"] != late_stacks.CUT:
            late_stacks.check_marks(site)


@pytest.fixture
def nested(machine: Machine) -> Iterator[str]:
    """On arm64 a return probe's trampoline stands in the frames of calls that have not returned."""
    library = compiled("libnested.so", COMPILER, [*FLAGS, "-shared"], [late_stacks.ALLOCATOR])
    flags = [*FLAGS, "-pie", f"-L{library.parent}", "-lnested", "-Wl,-rpath,$ORIGIN"]
    main = compiled("program", COMPILER, flags, [late_stacks.NESTED])
    with machine.holding(REMOTE, library, main):
        yield f"{REMOTE}/{main.name}"


def test_each_stack_of_nested_calls_is_the_program_s(machine: Machine, nested: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    allocator = ("-O", f"{REMOTE}/libnested.so", "--symbols-prefix", late_stacks.PREFIX)
    done = run(machine, "--tracer", "bpf", *allocator, "--json", report, "--", nested)
    assert done.returncode == 0, done.stderr
    late_stacks.check_nested(json.loads(report.read_text()))
