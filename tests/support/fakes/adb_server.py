"""A real adb server of the tests, apart from the user's devices, and its fake devices."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memleak_android.host.machine.adb.server import DeviceRow, list_devices
from tests.support.fakes.adbd import FakeDevice

PORT_VARIABLE = "ANDROID_ADB_SERVER_PORT"


def find_adb() -> str:
    """The one in PATH, else the one that the wheel of adbutils carries; skips where there is none."""
    import adbutils  # 0.2 s, which tests of other things need not spend

    try:
        return str(adbutils.adb_path())
    except adbutils.AdbError as error:
        pytest.skip(f"no adb: {error} (apt-get install adb)")


@contextmanager
def own_adb_server() -> Iterator[None]:
    """While it is entered, adb and we talk to a server on a free port; no serial is preset. Skips without an adb.

    Its key, its known hosts and its log are its own: two that make the first key of a home would meet.
    """
    find_adb()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {name: os.environ.get(name) for name in (PORT_VARIABLE, "ANDROID_SERIAL")}
    os.environ[PORT_VARIABLE] = str(port)
    os.environ.pop("ANDROID_SERIAL", None)
    try:
        with tempfile.TemporaryDirectory(prefix="memleak-adb-", ignore_cleanup_errors=True) as folder:
            adb("start-server", HOME=folder, TMPDIR=folder)
            try:
                yield
            finally:
                adb("kill-server")
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def adb(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [find_adb(), *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


@contextmanager
def connected(device: FakeDevice) -> Iterator[DeviceRow]:
    """The device's row as the server has it: unauthorized and offline devices have one too.

    `adb connect` is not waited for: with a device that is offline it takes ten seconds.
    """
    with (
        device,
        subprocess.Popen([find_adb(), "connect", device.serial], stdout=subprocess.DEVNULL) as adb_connect,
    ):
        try:
            yield _await_row(device)
        finally:
            adb_connect.kill()
            adb("disconnect", device.serial)


def _await_row(device: FakeDevice) -> DeviceRow:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for row in list_devices():
            if (row.serial, row.state) == (device.serial, device.faults.state):
                return row
        time.sleep(0.02)
    raise TimeoutError(f"{device.serial} is not {device.faults.state}")
