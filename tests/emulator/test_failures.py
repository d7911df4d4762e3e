"""Failures on the machine: each ends in its line and its exit code, and leaves nothing on the device.

No device, several of them, unauthorized and offline ones, nothing to measure, a cable that is pulled before anything
came: tests/host/commands/test_device_command.py, with a daemon that fails as requested. An app that is not debuggable, on a phone without root: test_stock_phone.py.
"""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.emulator.phone.apps import ARM32, abis
from tests.emulator.phone.leftovers import check_nothing_left, traces
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import (
    APP,
    APP_32,
    SECONDS,
    check_planted,
    process_times,
    report,
    run,
    started,
)

pytestmark = pytest.mark.emulator

# One tracer on every change, the other one in `make proof`: each takes ten to twenty seconds.
bpf_first = pytest.mark.parametrize("tracer", ["bpf", pytest.param("preload", marks=pytest.mark.proof)])
shim_first = pytest.mark.parametrize("tracer", ["preload", pytest.param("bpf", marks=pytest.mark.proof)])
# Files that must be on the device while a session runs, so that finding none afterwards means something.
HELD = {
    "bpf": ("file /data/local/tmp/memleak-android-", "anon_inode:bpf", "/memleakd"),
    "preload": (
        "file /data/local/tmp/memleak-android-",
        "file /data/app/memleak-android-",
        f"[wrap.{APP}]: [LD_",
    ),
}


@pytest.fixture(autouse=True)
def leaves_nothing(machine: Machine) -> Iterator[None]:
    """Every test begins and ends without the app."""
    machine.root_shell(f"am force-stop {APP}")
    before = traces(machine)
    yield
    check_nothing_left(machine, before)
    machine.root_shell(f"am force-stop {APP}")


def check_failed(done: subprocess.CompletedProcess[str], code: int, line: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert line in done.stderr and done.stderr.count("\n") == 1, done.stderr


def check_held(machine: Machine, tracer: str) -> None:
    held = "\n".join(traces(machine))
    assert all(one in held for one in HELD[tracer]), held


@contextlib.contextmanager
def under_way(machine: Machine, tracer: str) -> Iterator[subprocess.Popen[str]]:
    """A session that began with the app and has printed stacks of it."""
    with started(machine, "--package", APP, "--launch", "--tracer", tracer, "--interval", "1s") as process:
        alarm = threading.Timer(SECONDS, process.kill)
        alarm.start()
        try:
            assert process.stdout and process.stderr
            said = next((line for line in process.stdout if "[libleaky.so]" in line), "")
            assert said, process.stderr.read()
            check_held(machine, tracer)
            yield process
        finally:
            alarm.cancel()


@contextlib.contextmanager
def full_disk(machine: Machine, folder: str, size: str, owner: int) -> Iterator[None]:
    options = f"{size},mode=771,uid={owner},gid={owner}"
    assert machine.root_shell(f"mount -t tmpfs -o {options} none {folder}")[0] == 0
    try:
        yield
        assert machine.root_shell(f"ls -A {folder}") == (0, "")
    finally:
        machine.root_shell(f"umount {folder}")


@pytest.mark.skipif(ARM32 not in abis(), reason="no compiler for 32-bit arm")
def test_a_32_bit_process_is_refused_before_a_probe_is_placed(machine: Machine) -> None:
    machine.shell(f"am start -n {APP_32}/.MainActivity")
    done = run(machine, "--package", APP_32, "--tracer", "bpf")
    machine.shell(f"am force-stop {APP_32}")
    check_failed(done, 5, "32-bit code, where the kernel places no uprobes")


def test_selinux_refuses_bpf(machine: Machine) -> None:
    machine.shell(f"am start -n {APP}/.MainActivity")
    with machine.refusing("bpf"):
        done = run(machine, "--package", APP, "--tracer", "bpf")
    check_failed(done, 5, "it loads no BPF program for uprobes: SELinux refuses it, or its kernel has none")


@pytest.mark.parametrize(
    ("folder", "size", "owner", "words", "line"),
    [
        (
            "/data/local/tmp",
            "size=64k",
            2000,
            (),
            "memleakd could not be copied to device {}: No space left on device; make room on the device",
        ),
        (
            "/data/local/tmp",
            "nr_inodes=1",
            2000,
            (),
            "could not copy files into /data/local/tmp on device {}: mkdir",
        ),
        (
            "/data/app",
            "size=64k",
            1000,
            ("--launch", "--tracer", "preload"),
            f"wrap.{APP} could not be set on device {{}}: cat",
        ),
    ],
)
def test_the_device_has_no_room(
    machine: Machine, folder: str, size: str, owner: int, words: Sequence[str], line: str
) -> None:
    machine.shell(f"am start -n {APP}/.MainActivity")
    with full_disk(machine, folder, size, owner):
        done = run(machine, "--package", APP, *words)
    check_failed(done, 3, line.format(machine.serial))
    assert "No space left on device; " in done.stderr


@shim_first
def test_an_app_that_dies_is_reported_to_its_last_block(
    machine: Machine, tracer: str, tmp_path: Path
) -> None:
    def kill(process: subprocess.Popen[str]) -> None:
        check_held(machine, tracer)
        assert machine.root_shell(f"kill -9 $(pidof {APP})")[0] == 0

    check_planted(report(machine, tmp_path, APP, "--tracer", tracer, end=kill))


@shim_first
def test_what_came_before_the_cable_was_pulled_is_reported(
    machine: Machine, tracer: str, tmp_path: Path
) -> None:
    def pull(process: subprocess.Popen[str]) -> None:
        check_held(machine, tracer)
        machine.unplug()

    words = ("--tracer", tracer, "--interval", "1s")
    try:
        found = report(machine, tmp_path, APP, *words, end=pull, code=6)
    finally:
        machine.plug_in()
    assert any(f"the connection to device {machine.serial} was cut" in note for note in found["notes"])
    check_planted(found, measurement="incomplete")


@bpf_first
def test_an_agent_that_is_killed_leaves_its_report_and_the_app(
    machine: Machine, tracer: str, tmp_path: Path
) -> None:
    def kill(process: subprocess.Popen[str]) -> None:
        check_held(machine, tracer)
        assert machine.root_shell("kill -9 $(pidof memleakd)")[0] == 0

    words = ("--tracer", tracer, "--interval", "1s")
    found = report(machine, tmp_path, APP, *words, end=kill, code=6)
    assert any("the agent died: exit code 137 (signal 9)" in note for note in found["notes"])
    check_planted(found, measurement="incomplete")
    before = process_times(machine, APP)
    machine.shell(f"am start -n {APP}/.MainActivity")
    time.sleep(1)
    after = process_times(machine, APP)
    assert after.split()[0] == before.split()[0] and after != before


@shim_first
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_session_that_is_broken_off(machine: Machine, tracer: str, number: int, code: int) -> None:
    """By a second Ctrl-C, or by what no program notices."""
    with under_way(machine, tracer) as process:
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)
        process.communicate(timeout=SECONDS)
    assert process.returncode == code
