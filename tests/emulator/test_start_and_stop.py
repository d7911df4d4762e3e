"""Nothing of a machine stays, however its start or its life ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.emulator.debian import Unavailable
from tests.emulator.machine import ROOT_FOLDER, RUN, Machine, Options, start
from tests.emulator.qemu import MachineFailed
from tests.emulator.reservation import reserved

pytestmark = pytest.mark.emulator


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


def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.emulator.qemu.BOOT_SECONDS", 0.2)
    with pytest.raises(MachineFailed, match="no machine after"):
        start(Options(), number=5690)
    assert not (RUN / "5690").exists()
    assert not processes_of(5690)


def test_a_killed_starter_takes_its_machine_along() -> None:
    program = "from tests.emulator.machine import *; start(Options(), number=5680)"
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT_FOLDER)
    deadline = time.monotonic() + 60
    while not processes_of(5680) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(5680)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    while processes_of(5680) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(5680)
    assert reserved(RUN, [5680]) == 5680  # the folder that stayed is no obstacle
    (RUN / "5680" / "starter").unlink()
    (RUN / "5680").rmdir()


def test_a_taken_number_is_refused(machine: Machine) -> None:
    with pytest.raises(MachineFailed, match=f"{machine.number} are taken"):
        start(Options(), number=machine.number)
    assert machine.shell("echo here")[1] == "here\n"


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"no kernel 2\.4; there are 5\.10, 6\.1"):
        start(Options(kernel="2.4"))
