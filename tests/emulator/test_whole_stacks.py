"""On a device: stacks with untouched pages, several stacks of one thread, and allocations inside allocations that have not returned."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.phone.apps import FLAGS
from tests.emulator.phone.compiler import compiled
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import run
from tests.support import whole_stacks
from tests.support.workloads import TRACERS

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/stacks"
COMPILER = ("aarch64-linux-gnu-gcc",)


@pytest.fixture(scope="module")
def program(machine: Machine) -> Iterator[str]:
    flags = [*FLAGS, "-O2", "-fno-optimize-sibling-calls", "-pthread", "-pie"]
    main = compiled("whole_stacks", COMPILER, flags, [whole_stacks.PROGRAM])
    with machine.holding(REMOTE, main):
        yield f"{REMOTE}/{main.name}"


@pytest.mark.parametrize("mode", whole_stacks.STACKS)
@pytest.mark.parametrize("tracer", TRACERS)
def test_every_stack_is_whole(machine: Machine, program: str, tracer: str, mode: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(machine, "--tracer", tracer, "--json", report, "--", program, mode)
    assert done.returncode == 0, done.stderr
    whole_stacks.check(json.loads(report.read_text()), mode)


@pytest.fixture
def nested(machine: Machine) -> Iterator[str]:
    """On arm64 a return probe's trampoline stands in the frames of calls that have not returned."""
    library = compiled("libnested.so", COMPILER, [*FLAGS, "-shared"], [whole_stacks.ALLOCATOR])
    flags = [*FLAGS, "-pie", f"-L{library.parent}", "-lnested", "-Wl,-rpath,$ORIGIN"]
    main = compiled("program", COMPILER, flags, [whole_stacks.NESTED])
    with machine.holding(REMOTE, library, main):
        yield f"{REMOTE}/{main.name}"


def test_each_stack_of_nested_calls_is_the_program_s(machine: Machine, nested: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    allocator = ("-O", f"{REMOTE}/libnested.so", "--symbols-prefix", whole_stacks.PREFIX)
    done = run(machine, "--tracer", "bpf", *allocator, "--json", report, "--", nested)
    assert done.returncode == 0, done.stderr
    whole_stacks.check_nested(json.loads(report.read_text()))
