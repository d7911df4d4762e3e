"""Nothing of a machine stays, however its start or its life ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulator.__main__ import main
from tests.emulator.boot import start
from tests.emulator.compiler import ROOT
from tests.emulator.debian import Unavailable
from tests.emulator.kernels import DEFAULT, LINES
from tests.emulator.machine import RUN, Machine, Options, running
from tests.emulator.qemu import MachineFailed, end, runs
from tests.emulator.reservation import is_free, reserved

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
    monkeypatch.setattr("tests.emulator.qemu.BOOT_SECONDS", 0.2)
    with pytest.raises(MachineFailed, match="no machine after"):
        start(Options(), number=OUT_OF_THE_WAY)
    assert not (RUN / str(OUT_OF_THE_WAY)).exists()
    assert not processes_of(OUT_OF_THE_WAY)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("machine")  # skips, with the reason, where none can be had
@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGKILL))
def test_a_starter_that_ends_takes_its_machine_along(number: signal.Signals) -> None:
    taken = OUT_OF_THE_WAY + 10
    program = f"from tests.emulator.boot import *; start(Options(), number={taken})"
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_until(lambda: bool(processes_of(taken)))
    os.kill(starter.pid, number)
    assert starter.wait(WAIT_SECONDS) == -number
    wait_until(lambda: not processes_of(taken))
    assert (RUN / str(taken)).exists() == (number == signal.SIGKILL)  # nothing can clean up after it
    assert reserved(RUN, [taken]) == taken  # but it blocks no other machine
    shutil.rmtree(RUN / str(taken))


def test_a_taken_number_is_refused(machine: Machine) -> None:
    with pytest.raises(MachineFailed, match=f"{machine.number} are taken"):
        start(Options(), number=machine.number)
    assert machine.shell("echo here")[1] == "here\n"


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"no kernel 2\.4; there are 5\.10, 6\.1"):
        start(Options(kernel="2.4"))


def test_unplugging_ends_streams_and_plugging_in_brings_it_back(machine: Machine) -> None:
    sleeping = subprocess.Popen(
        ["adb", "-P", str(machine.server_port), "-s", machine.serial, "shell", "echo up; sleep 100"],
        stdout=subprocess.PIPE,
    )
    assert sleeping.stdout is not None and sleeping.stdout.readline() == b"up\n"
    machine.unplug()
    try:
        sleeping.wait(timeout=20)  # adb 29 says 0: the stream itself has to carry the exit code
        assert re.search(rb"not found|offline", machine.adb("get-state").stderr)
    finally:
        machine.plug_in()
    assert machine.shell("echo here")[1] == "here\n"


@pytest.mark.usefixtures("machine")  # skips, with the reason, where none can be had
@pytest.mark.parametrize("build", ("rooted", "user"))
def test_builds_differ_in_su_and_properties(build: str) -> None:
    started = start(Options(build=build, selinux="permissive"))
    try:
        assert (
            started.shell("getprop ro.build.type; getprop ro.debuggable; getenforce")[1]
            == "user\n0\nPermissive\n"
        )
        code, output, error = started.shell("su -c 'id -u'")
        if build == "rooted":
            assert (code, output) == (0, "0\n")
            assert started.shell("su 0 -c 'exit 3'")[0] == 3
            assert started.shell("su 0 id -u")[:2] != (0, "0\n")  # words after WHO are the shell's
        else:
            assert code == 127 and "su: inaccessible or not found" in error
        end(started.server_pid, str(started.server_port))
        assert started.adb("devices").returncode == 0  # starts a server, as every client does
    finally:
        started.stop()
    assert not processes_of(started.number) and is_free(started.server_port)


@pytest.mark.proof
@pytest.mark.parametrize("line", sorted(set(LINES) - {DEFAULT}))
def test_every_kernel_boots(line: str) -> None:
    started = start(Options(kernel=line, adb_user="root"))
    try:
        assert started.shell("uname -r")[1].startswith(line.removesuffix("-16k"))
        assert started.shell("getconf PAGE_SIZE")[1] == ("16384\n" if line.endswith("16k") else "4096\n")
        assert started.shell("id -u")[1] == "0\n"
    finally:
        started.stop()


def test_a_machine_that_was_powered_off_can_be_stopped() -> None:
    started = start(Options(), outlives_us=True)
    with pytest.raises(MachineFailed):  # it does not live to answer
        started.root_shell("echo o >/proc/sysrq-trigger; sleep 100", timeout_s=1)
    wait_until(lambda: not runs(started.qemu_pid, f"memleak-{started.serial}"))
    assert started in running()
    main(["stop", str(started.number)])
    assert started not in running()
    assert not processes_of(started.number) and not started.folder.exists()
