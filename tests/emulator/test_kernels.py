"""The other kernels of Android's lines: 5.10 without what the newer BPF object needs, 6.12 with pages of 16 KiB.

The CPU of the latter signs return addresses and looks for landing pads, and the app, its libc and the shim have it do so.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.phone.boot import booted
from tests.emulator.phone.machine import Machine, Options
from tests.emulator.test_sessions import APP, check_planted, interrupt, report
from tests.support.workloads import TRACERS

pytestmark = [pytest.mark.emulator, pytest.mark.proof]


SIGNING = "6.12-16k"
SHIM = "m.so"  # as it is called on a device


@pytest.fixture(scope="module", params=["5.10", SIGNING])
def other_machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Skips, with the reason, where its kernel cannot be had."""
    with booted(Options(kernel=request.param)) as machine:
        yield machine


@pytest.mark.parametrize("tracer", TRACERS)
def test_an_app(other_machine: Machine, tracer: str, tmp_path: Path) -> None:
    guarded: list[str] = []

    def end(session: subprocess.Popen[str]) -> None:
        guarded.extend(guarded_modules(other_machine, APP))
        interrupt(session)

    check_planted(report(other_machine, tmp_path, APP, "--tracer", tracer, end=end))
    signs = other_machine.options.kernel == SIGNING
    assert ("libc.so.6" in guarded) == signs
    assert (SHIM in guarded) == (signs and tracer == "preload")


def guarded_modules(machine: Machine, package: str) -> list[str]:
    """Base names of the modules whose code the CPU guards: "bt" of VmFlags (proc(5); kernel commit 424037b77519)."""
    text = machine.root_shell(f"cat /proc/$(pidof {package})/smaps")[1]
    mappings = re.findall(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$|^VmFlags:(.*)$", text, re.MULTILINE)
    name, found = "", []
    for path, flags in mappings:
        if flags and "bt" in flags.split():
            found.append(name.rpartition("/")[2])
        elif not flags:
            name = path
    return found
