"""Programs that take something away from themselves end on the machine, too, as untraced, with every block counted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.phone.apps import FLAGS
from tests.emulator.phone.compiler import compiled
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import run
from tests.emulator.test_whole_stacks import COMPILER
from tests.support.workloads import SOURCES

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/odd"
BYTES, BLOCKS = 1009, 24


@pytest.fixture(scope="module")
def program(machine: Machine) -> Iterator[str]:
    made = compiled("odd_programs", COMPILER, [*FLAGS, "-O1", "-pthread"], [SOURCES / "odd_programs.c"])
    with machine.holding(REMOTE, made):
        yield f"{REMOTE}/{made.name}"


@pytest.mark.parametrize("name", ["sandboxed", "forbids_some", "small_room", "forks_apart"])
def test_as_untraced(machine: Machine, program: str, name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(machine, "-q", "--tracer", "preload", "--json", report, "--", program, name)
    found = json.loads(report.read_text())
    assert (found["measurement"], found["target"]["exit_status"]) == ("complete", 0), (
        done.stdout,
        done.stderr,
    )
    held = [
        one["inuse_objects"] for one in found["sites"] if one["inuse_space"] == BYTES * one["inuse_objects"]
    ]
    assert sum(held) == BLOCKS
