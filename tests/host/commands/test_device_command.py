"""The whole program against a device behind the real adb server; each failure is one line and its exit code.

The device is tests/support/fakes/adbd.py; the agent on it is a script: what a session says is fake_agent.py's, the rest
is the real agent's.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.cli import run
from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from tests.support.attaching import until
from tests.support.command_line import FAKE_AGENT, Finished
from tests.support.fakes.adb_server import connected
from tests.support.fakes.adbd import FakeDevice, Faults
from tests.support.running_program import blocked

pytestmark = pytest.mark.usefixtures("adb_server")

CAPABILITIES = ("bpf", "bpf_mappable_array", "bpf_uprobe_programs", "uprobe_pmu", "sideband")
Run = Callable[..., Finished]
Plug = Callable[..., FakeDevice]


@pytest.fixture
def plug(tmp_path: Path) -> Iterator[Plug]:
    """Connects one more device, whose adbd runs as root for every user of the tests, so that BPF is available."""
    with ExitStack() as stack:

        def connect(**faults: Any) -> FakeDevice:
            root = tmp_path / f"device{time.monotonic_ns()}"
            device = FakeDevice(root, Faults(**faults))
            stack.enter_context(connected(device))
            device.add_program("id", "echo 0")
            return device

        yield connect


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of one run; the agent is the script."""
    try:
        real = find_binary("memleakd", local_arch())
    except TracerError as error:
        pytest.skip(str(error))
    agent = tmp_path / "memleakd"
    probed = json.dumps(dict.fromkeys(CAPABILITIES, True))
    agent.write_text(
        f"#!/bin/sh\ncase $1 in\nprobe) echo '{probed}' ;;\nbpf) exec '{sys.executable}' '{FAKE_AGENT}' bpf ;;\n"
        f"*) exec '{real}' \"$@\" ;;\nesac\n"
    )
    monkeypatch.setenv("MEMLEAKD", str(agent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_AGENT", "{}")
    return tmp_path


@pytest.fixture
def program(environment: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the program in this process."""

    def run_it(*words: object, scenario: dict[str, Any] | None = None) -> Finished:
        monkeypatch.setenv("FAKE_AGENT", json.dumps(scenario or {}))
        code = run([str(word) for word in words])
        out, err = capfd.readouterr()
        return Finished(code, out, err)

    return run_it


def test_no_device(program: Run) -> None:
    for words in (["devices"], ["-d", "--pid", 1], ["--package", "com.example.leaky"]):
        done = program(*words)
        assert done.code == 3 and not done.out
        assert "found; connect one with USB debugging on, or start an emulator" in done.error


def test_several_devices_are_shown_with_the_flags(program: Run, plug: Plug) -> None:
    first, second = plug(), plug(state="offline")
    done = program("--package", "com.example.leaky")
    assert done.code == 3
    assert done.error == "more than one device/emulator; name one by --serial ID, -d (USB) or -e (TCP)"
    lines = [line.split()[1:3] for line in done.err.splitlines()[:3]]
    assert lines[0] == ["SERIAL", "STATE"]
    rows = sorted([[first.serial, "device"], [second.serial, "offline"]])  # adb 36 has an order of its own
    assert sorted(lines[1:]) == rows
    done = program("devices", "--json")
    assert done.code == 0
    found = json.loads(done.out)["devices"]
    assert {row["serial"]: row["usable"] for row in found} == {first.serial: True, second.serial: False}
    assert sorted(line.split()[:2] for line in program("devices").out.splitlines()[1:]) == rows


@pytest.mark.parametrize(
    ("faults", "line"),
    [
        ({"state": "unauthorized"}, "is unauthorized; accept this computer in the dialog on its screen"),
        ({"state": "offline"}, "is offline; connect it again, or try `adb reconnect offline`"),
        ({"features": "cmd"}, "the only one with exit codes; use Android 7 or later"),
        ({"refused": "shell"}, "device {}: adb: closed; the device closed the connection: try again"),
    ],
)
def test_devices_that_cannot_be_used(program: Run, plug: Plug, faults: dict[str, Any], line: str) -> None:
    device = plug(**faults)
    done = program("--serial", device.serial, "--pid", 1)
    assert done.code == 3 and done.error.endswith(line.format(device.serial))
    assert device.serial in done.error


def test_several_devices_at_once(program: Run, plug: Plug, tmp_path: Path) -> None:
    """One that fails stops no other: two recordings and one clear line."""
    first, second, gone = plug(), plug(), plug(refused="shell")
    unusable = plug(state="offline")
    with blocked(["cat"]) as pid:
        done = program(
            "record", "--all-devices", "--pid", pid, "--duration", "300ms", "-o", tmp_path / "farm"
        )
    assert done.code == 6, done.err
    found = {path.name for path in (tmp_path / "farm").iterdir()}
    assert found == {f"{one.serial.replace(':', '_')}.memleak" for one in (first, second)}
    assert f"device {unusable.serial} is offline, left out" in done.err
    assert f"{gone.serial}: error: device {gone.serial}: adb: closed" in done.err
    assert not (tmp_path / "farm" / f"{gone.serial}.memleak").exists()
    assert "2 of 3 devices measured" in done.err and "fleet report" in done.err
    assert not first.left() and not second.left()


def test_several_serials(program: Run, plug: Plug, tmp_path: Path) -> None:
    devices = [plug(), plug(), plug()]
    chosen = [word for one in devices[:2] for word in ("--serial", one.serial)]
    with blocked(["cat"]) as pid:
        by_fp = ("--unwind", "fp")  # what the fake agent's stacks are whole by
        done = program(
            "record", *chosen, *by_fp, "--pid", pid, "--duration", "300ms", "-o", tmp_path / "farm"
        )
    assert done.code == 0 and len(os.listdir(tmp_path / "farm")) == 2, done.err
    assert not devices[2].commands
    ended = program("record", *chosen, *by_fp, "-o", tmp_path / "ended", "--", "/bin/sh", "-c", "exit 3")
    assert ended.code == 0 and "2 of 2 devices measured" in ended.err, (
        "a command's exit status is not a failure of the device"
    )
    again = program("record", *chosen, "--pid", 1, "-o", tmp_path / "farm")
    assert again.code == 2 and "exists, not overwritten" in again.error
    other = program(*chosen, "--pid", 1)
    assert other.code == 2
    assert other.error == "2 times --serial; several devices at once are measured by `record`"
    twice = program("record", *chosen[:2], *chosen[:2], "--pid", 1, "-o", tmp_path / "x")
    assert twice.code == 2 and twice.error.startswith("one device is named twice")


def test_a_serial_that_a_shell_would_take_apart(program: Run, plug: Plug) -> None:
    device = plug()
    done = program("--serial", "my phone; reboot\x1b[31m", "--pid", 1)
    assert done.code == 3
    assert done.error == f"device 'my phone; reboot?[31m' not found; adb knows: {device.serial}"
    assert not device.commands


def test_the_serial_of_the_environment(program: Run, plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = plug(), plug()
    monkeypatch.setenv("ANDROID_SERIAL", device.serial)
    done = program("--pid", 2**31 - 1)
    assert done.code == 4 and device.commands
    device.commands.clear()
    done = program("doctor")
    assert done.code == 0 and device.commands


def test_words_that_are_refused(program: Run, plug: Plug) -> None:
    both = program("-d", "-e", "--pid", 1)
    assert both.code == 2 and both.error.startswith("more than one of -s, -d and -e")
    for tracer in ("inline", "plt"):
        done = program("-s", plug().serial, "--tracer", tracer, "--", "true")
        error = f"--tracer {tracer} is for processes that run already; use --tracer bpf or preload"
        assert done.code == 5 and done.error == error


@pytest.mark.parametrize(
    ("uid", "line"),
    [(0, "by bpf, as root"), (2000, "by the shim, with the rights of the shell (bpf: no root)")],
)
def test_doctor_says_how_a_command_is_measured(program: Run, plug: Plug, uid: int, line: str) -> None:
    device = plug()
    device.add_program("id", f"echo {uid}")
    done = program("-s", device.serial, "doctor")
    (found,) = (row.split(None, 2)[2] for row in done.out.splitlines() if row.startswith("-- CMD"))
    assert (done.code, found) == (0, line)


def measured(program: Run, device: FakeDevice, *words: object, **scenario: object) -> Finished:
    with blocked(["cat"]) as pid:
        return program("-s", device.serial, "--pid", pid, *words, scenario=scenario)


@contextmanager
def cut_when(device: FakeDevice, has_come: Callable[[], bool], delay_s: float = 0.0) -> Iterator[None]:
    """Pulls the cable some time after that; in the end nothing is left on the device."""

    def pull() -> None:
        until(has_come)
        time.sleep(delay_s)
        device.cut()

    thread = threading.Thread(target=pull)
    thread.start()
    yield
    thread.join()
    assert not device.left()


def is_measuring(device: FakeDevice) -> bool:
    return any("memleakd bpf" in line for line in list(device.commands))


def test_a_connection_cut_after_a_snapshot_is_reported(program: Run, plug: Plug, tmp_path: Path) -> None:
    device, third = plug(), tmp_path / "third"
    with cut_when(device, third.exists):
        done = measured(program, device, "--interval", "200ms", snapshots_file=str(third))
    assert done.code == 6, done.err
    assert "30 B        1  " in done.out + done.err
    assert f"the connection to device {device.serial} was cut" in done.out + done.err


def test_a_connection_cut_before_anything_came(program: Run, plug: Plug) -> None:
    device = plug()
    with cut_when(device, lambda: is_measuring(device), 0.3):
        done = measured(program, device, silent=True)
    assert done.code == 3
    assert done.error == f"the connection to device {device.serial} was cut; connect it again"


def test_an_agent_that_dies_on_the_device(program: Run, plug: Plug) -> None:
    device = plug()
    done = measured(program, device, die_after="hello")
    assert (done.code, done.error) == (5, "the agent died: exit code 3; it said: out of memory")
    assert not os.listdir(device.temporary)
