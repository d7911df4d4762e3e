"""Nothing of a machine stays, however its start or its life ends."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.__main__ import main
from tests.emulator.phone.boot import start
from tests.emulator.phone.compiler import ROOT
from tests.emulator.phone.machine import RUN, Options, running
from tests.emulator.phone.qemu import MachineFailed, runs
from tests.emulator.phone.reservation import reserved
from tests.support.attaching import until

pytestmark = pytest.mark.emulator
WAIT_SECONDS = 60.0
OUT_OF_THE_WAY = 5710  # no number that a start without one takes


def processes_of(number: int) -> list[str]:
    """The command lines of what runs for a machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"memleak-emulator-{number}".encode() in words or (
            b"adb" in words[0] and str(number + 2).encode() in words
        ):
            found.append(words[0].decode())
    return found


@pytest.mark.usefixtures("machine")  # skips, with the reason, where none can be had
def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.emulator.phone.qemu.BOOT_SECONDS", 0.2)
    with pytest.raises(MachineFailed, match="no machine after"):
        start(Options(), number=OUT_OF_THE_WAY)
    assert not (RUN / str(OUT_OF_THE_WAY)).exists()
    assert not processes_of(OUT_OF_THE_WAY)


@pytest.mark.usefixtures("machine")  # skips, with the reason, where none can be had
@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGKILL))
def test_a_starter_that_ends_takes_its_machine_along(number: signal.Signals) -> None:
    taken = OUT_OF_THE_WAY + 10
    program = f"from tests.emulator.phone.boot import *; start(Options(), number={taken})"
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert until(lambda: bool(processes_of(taken)))
    os.kill(starter.pid, number)
    assert starter.wait(WAIT_SECONDS) == -number
    assert until(lambda: not processes_of(taken))
    assert (RUN / str(taken)).exists() == (number == signal.SIGKILL)  # nothing can clean up after it
    assert reserved(RUN, [taken]) == taken  # but it blocks no other machine
    shutil.rmtree(RUN / str(taken))


def test_a_machine_that_was_powered_off_can_be_stopped() -> None:
    started = start(Options(), number=OUT_OF_THE_WAY + 20, outlives_us=True)
    with pytest.raises(MachineFailed):  # it does not live to answer
        started.root_shell("echo o >/proc/sysrq-trigger; sleep 100", timeout_s=1)
    assert until(lambda: not runs(started.qemu_pid, f"memleak-{started.serial}"))
    assert started in running()
    main(["stop", str(started.number)])
    assert started not in running()
    assert not processes_of(started.number) and not started.folder.exists()
