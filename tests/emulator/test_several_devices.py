"""Two devices on one adb server, the machine and a daemon that plays one: none is chosen unasked, and -s means one alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.leftovers import check_nothing_left, traces
from tests.emulator.machine import Machine, adb_program
from tests.emulator.test_sessions import APP, SECONDS
from tests.support.fakes.adbd import FakeDevice, Faults
from tests.support.workloads import PROGRAM

pytestmark = pytest.mark.emulator

NO_PROCESS = "4194303"


@pytest.fixture
def other(machine: Machine, tmp_path: Path) -> Iterator[FakeDevice]:
    """A second device of the machine's adb server."""
    server = [adb_program(), "-P", str(machine.server_port)]
    with FakeDevice(tmp_path / "device", Faults()) as device:
        subprocess.run([*server, "connect", device.serial], check=True, capture_output=True, timeout=SECONDS)
        try:
            yield device
        finally:
            subprocess.run([*server, "disconnect", device.serial], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def leaves_nothing(machine: Machine, other: FakeDevice) -> Iterator[None]:
    before = traces(machine)
    yield
    check_nothing_left(machine, before)
    assert not os.listdir(other.temporary)


def run(machine: Machine, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program, which learns the adb server from the environment and the device from its arguments."""
    own = {name: value for name, value in os.environ.items() if name != "ANDROID_SERIAL"}
    return subprocess.run(
        [*PROGRAM, *words],
        env={**own, "ANDROID_ADB_SERVER_PORT": str(machine.server_port), **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("words", [("--package", APP), ("-e", "--package", APP), ("doctor", "-e")])
def test_which_one_has_to_be_said(machine: Machine, other: FakeDevice, words: tuple[str, ...]) -> None:
    done = run(machine, *words)
    assert (done.returncode, done.stdout) == (3, "")
    *table, error = done.stderr.splitlines()
    assert error.startswith("memleak-android: error: more than one ") and "--serial ID" in error, error
    rows = sorted(line.split()[1:3] for line in table if line.split()[1:2] != ["SERIAL"])
    assert rows == sorted([[machine.serial, "device"], [other.serial, "device"]])
    assert not other.commands


@pytest.mark.proof
def test_the_one_that_was_named_is_measured(machine: Machine, other: FakeDevice) -> None:
    done = run(machine, "-s", machine.serial, "--json", "-", "--", "ls", "/system/bin/app_process64")
    assert done.returncode == 0 and f'"serial": "{machine.serial}"' in done.stdout, done.stderr
    assert not other.commands


def test_the_environment_names_one_too(machine: Machine, other: FakeDevice) -> None:
    done = run(machine, "--package", "com.example.gone", ANDROID_SERIAL=machine.serial)
    assert done.returncode == 4 and "com.example.gone is not installed on device" in done.stderr
    assert not other.commands
    done = run(machine, "--pid", NO_PROCESS, ANDROID_SERIAL=other.serial)
    assert done.returncode == 4 and f"there is no process {NO_PROCESS} on device" in done.stderr
    assert other.commands
