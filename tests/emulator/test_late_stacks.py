"""Stacks longer than their slices, on a device: completed, and never by what is another call's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.apps import FLAGS
from tests.emulator.compiler import compiled, cross
from tests.emulator.machine import Machine
from tests.emulator.test_sessions import run
from tests.support import late_stacks
from tests.support.workloads import TRACERS

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/late"
ROUNDS = "20"


@pytest.fixture(scope="module")
def program(machine: Machine) -> Iterator[str]:
    flags = [*FLAGS, "-O2", "-fno-optimize-sibling-calls", "-pthread", "-pie"]
    main = compiled("late_stacks", cross("aarch64-linux-gnu-gcc"), flags, [late_stacks.PROGRAM])
    machine.shell(f"mkdir {REMOTE}")
    assert machine.adb("push", main, f"{REMOTE}/{main.name}").returncode == 0
    yield f"{REMOTE}/{main.name}"
    machine.shell(f"rm -r {REMOTE}")


@pytest.mark.parametrize("tracer", TRACERS)
def test_the_parent_is_that_of_the_call(machine: Machine, program: str, tracer: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--tracer", tracer, *late_stacks.OPTIONS, "--json", report)
    done = run(machine, *words, "--", program, "calls", ROUNDS)
    assert done.returncode == 0, done.stderr
    sites = late_stacks.own_sites(json.loads(report.read_text()))
    late_stacks.check_parents(sites)
    for site in sites:
        if tracer == "preload":
            assert site["end"] != late_stacks.CUT and site["frames"][-1]["method"] != "late"
        elif site["end"] != late_stacks.CUT:
            late_stacks.check_marks(site)
