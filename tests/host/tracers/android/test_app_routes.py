"""A running app on a device without root: if the system does not load the shim, ptrace does, and the reason is reported.

The device is tests/support/fakes/adbd.py, the app a program of this machine, the agent the real one.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.adb.process import running_command
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.android import attach_agent as remote_agent
from memleak_android.host.tracers.android.device import DeviceTracers
from memleak_android.host.tracers.local.kernel import KernelGroup
from tests.support.attached_session import contents_of, layout_of, leak, loaded
from tests.support.command_line import Finished
from tests.support.fakes.adb_server import connected
from tests.support.fakes.adbd import FakeDevice
from tests.support.fakes.device_here import DeviceHere
from tests.support.preload_session import find_parts
from tests.support.running_program import another_thread

pytestmark = [pytest.mark.usefixtures("adb_server"), pytest.mark.compares_code]

APP = "com.example.app"
DUMP = f"Packages:\n  Package [{APP}] (1):\n    userId=10123\n    primaryCpuAbi=x86_64\n    pkgFlags=[ DEBUGGABLE ]\n"
HANGS, HANGS_S = "sleep 60", 1.0
NOT_DEBUGGABLE = (
    "printf '\\nException occurred while executing '\\''attach-agent'\\'':\\n"
    f"java.lang.SecurityException: Process not debuggable: {APP}\\n' >&2; exit 255"
)


class Phone:
    """A stock phone on which the app is a process of this machine. attach_agent: what `cmd activity` does, as a script."""

    def __init__(self, device: FakeDevice, process: subprocess.Popen[bytes], attach_agent: str) -> None:
        self.device, self.process = device, process
        self.data = device.folder / "data" / "data" / APP
        self.data.mkdir(parents=True)
        device.add_program("id", "echo 'uid=10123 gid=10123'")
        device.add_program("su", "exit 1")
        device.add_program("getprop", "echo 29")
        device.add_program("pm", f"echo package:{device.folder}/base.apk")
        device.add_program("dumpsys", f"cat <<'END'\n{DUMP}END")
        device.add_program("run-as", f'shift; cd "{self.data}"; exec "$@"')
        device.add_program("ps", f"echo '  PID   UID NAME'; echo '{process.pid} 10123 {APP}'")
        device.add_program("cmd", attach_agent)


@contextmanager
def leaking(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Every tenth of a second."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.1):
            leak(process)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    find_parts()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_agent, "JOINED_S", HANGS_S)  # no case here joins
    return tmp_path


@contextmanager
def phone(folder: Path, attach_agent: str) -> Iterator[Phone]:
    with ExitStack() as stack:
        process = stack.enter_context(loaded(1))
        device = FakeDevice(folder / "device")
        stack.enter_context(connected(device))
        yield Phone(device, process, attach_agent)


def measure(phone: Phone, capfd: pytest.CaptureFixture[str]) -> Finished:
    code = run(["-s", phone.device.serial, "--package", APP, "--duration", "2s", "--json", "-"])
    out, err = capfd.readouterr()
    return Finished(code, out, err)


@pytest.mark.parametrize(
    ("attach_agent", "why"),
    [
        (NOT_DEBUGGABLE, f"could not load the shim as an agent: Process not debuggable: {APP}"),
        ("echo 'Unknown command: attach-agent'; exit 255", "could not load the shim as an agent: Unknown command: attach-agent"),
        ("exit 0", f"did not load the shim within {HANGS_S:g} s"),
        (HANGS, "could not load the shim as an agent: device {serial} did not answer cmd within 1 s"),
    ],
    ids=["not debuggable", "an old am", "dlopen refused", "am hangs"],
)  # fmt: skip
def test_ptrace_where_the_system_does_not_load_the_shim(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    attach_agent: str,
    why: str,
) -> None:
    if attach_agent == HANGS:  # others answer, however late
        monkeypatch.setattr(remote_agent, "_ANSWER_S", HANGS_S)
    with phone(folder, attach_agent) as one:
        pid = one.process.pid
        before, layout = contents_of(pid), layout_of(pid)
        with leaking(one.process):
            done = measure(one, capfd)
        assert done.code == 0, done.err
        (line,) = [row for row in done.err.splitlines() if "measuring by plt: " in row]
        said = f"{APP} {why.format(serial=one.device.serial)}; attached by ptrace instead"
        assert line.endswith(said)
        found = json.loads(done.out)
        assert found["target"]["tracer"] == "plt" and found["target"]["pid"] == pid
        (count,) = {
            site["inuse_objects"]
            for site in found["sites"]
            if site["inuse_space"] == 5003 * site["inuse_objects"]
        }
        assert count  # the session may end between two of a line's 23 blocks
        assert set(found["totals"]["lost"].values()) <= {0}
        assert (contents_of(pid), layout_of(pid)) == (before, layout)
        assert not list(one.data.iterdir()) and not list(one.device.temporary.iterdir())


def test_both_refusals_are_reported(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with phone(folder, NOT_DEBUGGABLE) as one:
        os.kill(one.process.pid, signal.SIGSTOP)
        done = measure(one, capfd)
        assert done.code == 4 and done.error.startswith(f"process {one.process.pid} is stopped"), done.err
        assert f"Process not debuggable: {APP}; attached by ptrace instead" in done.err
        assert not list(one.data.iterdir()) and not list(one.device.temporary.iterdir())


def test_a_device_without_root(tmp_path: Path) -> None:
    tracers = DeviceTracers(DeviceHere(), tmp_path)
    with pytest.raises(TracerError, match="by root only, and device x has no way to root"):
        tracers.start("auto", SessionOptions(kernel=int(KernelGroup.SLAB)))
    tracers.close()


def test_a_kernel_thread_is_as_good_as_others() -> None:
    comm = Path("/proc/2/comm")
    if not comm.exists() or comm.read_text().strip() != "kthreadd":
        pytest.skip("no kernel threads to be seen here")
    assert running_command(LocalMachine(), 2) == "kthreadd"


def test_a_thread_is_none() -> None:
    with another_thread() as thread, pytest.raises(TargetError, match="is a thread of process"):
        running_command(LocalMachine(), thread)
