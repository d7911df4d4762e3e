"""Our folder on a device is gone after everything: success, errors, a cut connection, the death of this program."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.errors import ConnectionCut, DeviceError
from memleak_android.host.machine.adb.device import AdbDevice
from memleak_android.host.machine.adb.server import DeviceRow, list_devices
from memleak_android.host.machine.target import AppUser
from tests.support.attaching import until
from tests.support.fakes.adb_server import connected
from tests.support.fakes.adbd import FakeDevice

pytestmark = pytest.mark.usefixtures("adb_server")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDevice]:
    device = FakeDevice(tmp_path / "device")
    with connected(device):
        yield device


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """Larger than every buffer on the way."""
    path = tmp_path / "tool"
    path.write_bytes(b"#!/bin/sh\necho ran\nexit 0\n" + os.urandom(1 << 20))
    return path


def row_of(fake: FakeDevice) -> DeviceRow:
    return next(row for row in list_devices() if row.serial == fake.serial)


def test_files_are_complete_and_executable_until_the_end(fake: FakeDevice, tool: Path) -> None:
    device = AdbDevice(row_of(fake))
    with device.deploy({"tool": tool, "lib.so": tool}) as deployment:
        assert Path(deployment.paths["lib.so"]).read_bytes() == tool.read_bytes()
        assert device.run([deployment.paths["tool"]]).out == b"ran\n"
        assert oct(os.stat(deployment.folder).st_mode & 0o777) == "0o711"
    assert os.listdir(fake.temporary) == []


def test_an_error_inside_takes_it_away(fake: FakeDevice, tool: Path) -> None:
    with pytest.raises(ZeroDivisionError), AdbDevice(row_of(fake)).deploy({"tool": tool}):
        raise ZeroDivisionError
    assert os.listdir(fake.temporary) == []


def test_a_pulled_cable_takes_it_away(fake: FakeDevice, tool: Path) -> None:
    deployment = AdbDevice(row_of(fake)).deploy({"tool": tool})
    assert os.listdir(fake.temporary)
    fake.cut()
    assert fake.left() == []
    deployment.close()


def test_a_cable_pulled_while_copying_takes_it_away(fake: FakeDevice, tool: Path) -> None:
    fake.add_program("chmod", f"touch {fake.folder}/copied; sleep 5")
    pull = threading.Thread(target=lambda: until((fake.folder / "copied").exists) and fake.cut())
    pull.start()
    with pytest.raises(ConnectionCut, match="was cut"):
        AdbDevice(row_of(fake)).deploy({"tool": tool})
    pull.join()
    assert fake.left() == []


def test_the_death_of_this_program_takes_it_away(fake: FakeDevice, tool: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom memleak_android.host.machine.adb.server import list_devices\n"
        "from memleak_android.host.machine.adb.device import AdbDevice\n"
        "row = next(row for row in list_devices() if row.serial == sys.argv[1])\n"
        "deployment = AdbDevice(row).deploy({'tool': Path(sys.argv[2])})\nprint('there', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, fake.serial, str(tool)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"there\n"
        assert os.listdir(fake.temporary)
        process.send_signal(signal.SIGKILL)
    assert fake.left() == []


@pytest.mark.parametrize(
    ("program", "script", "message"),
    [
        ("chmod", 'echo "cat: write error: No space left on device" >&2; exit 1',
         "tool could not be copied to {}: No space left on device; make room on the device"),
        ("mkdir", "echo \"mkdir: 'x': Read-only file system\" >&2; exit 1",
         "could not copy files into /data/local/tmp on {}: mkdir: 'x': Read-only file system; make room there"),
        ("mkdir", "exit 1", "could not copy files into /data/local/tmp on {}: exit code 1; make room there"),
    ],
)  # fmt: skip
def test_refusals(fake: FakeDevice, tool: Path, program: str, script: str, message: str) -> None:
    fake.add_program(program, script)
    with pytest.raises(DeviceError) as caught:
        AdbDevice(row_of(fake)).deploy({"tool": tool})
    assert str(caught.value) == message.format(f"device {fake.serial}")
    assert os.listdir(fake.temporary) == []


def test_what_a_dead_device_kept_goes_at_the_next_visit(fake: FakeDevice, tool: Path) -> None:
    device = AdbDevice(row_of(fake))
    stale = fake.temporary / f"memleak-android-{os.getpid()}-0123456789abcdef"  # its number is ours by now
    stale.mkdir()
    (stale / "memleakd").touch()
    (fake.temporary / "memleak-android.txt").touch()
    with device.deploy({"tool": tool}) as first, device.deploy({"tool": tool}) as second:
        assert Path(first.paths["tool"]).exists() and Path(second.paths["tool"]).exists()
        assert not stale.exists()
    assert os.listdir(fake.temporary) == ["memleak-android.txt"]


def test_in_the_folder_of_an_app(fake: FakeDevice, tool: Path, tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    fake.add_program(
        "run-as", f'[ "$1 $2 $3" = "com.example --user 10" ] || exit 1; shift 3; cd {app}; exec "$@"'
    )
    with AdbDevice(row_of(fake)).deploy({"tool": tool}, run_as=AppUser("com.example", 10)) as deployment:
        assert Path(deployment.paths["tool"]).parent.parent == app
    assert os.listdir(app) == []


def test_a_device_that_never_gets_ready(
    fake: FakeDevice, tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mkdir ends after the host has given up; nothing may be left."""
    monkeypatch.setattr("memleak_android.host.machine.adb.keeper._READY_S", 0.1)
    fake.add_program("mkdir", 'sleep 1; PATH=/usr/bin:/bin exec mkdir "$@"')
    with pytest.raises(DeviceError, match="it does not answer; make room there"):
        AdbDevice(row_of(fake)).deploy({"tool": tool})
    time.sleep(0.5)
    assert fake.left() == []
