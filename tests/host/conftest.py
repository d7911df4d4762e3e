"""The verb `unwind`, run in this process; the adb server that all tests of devices share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from tests.support.command_line import CommandLine, Finished, Unwind
from tests.support.fakes.adb_server import connected, own_adb_server
from tests.support.fakes.adbd import FakeDevice
from tests.support.preload_session import find_parts


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    """The program with the scripted agent."""
    return CommandLine(tmp_path)


@pytest.fixture
def unwind(capfd: pytest.CaptureFixture[str]) -> Unwind:
    def run_it(folder: Path, *options: str) -> Finished:
        code = run(["unwind", str(folder), *options])
        out, err = capfd.readouterr()
        return Finished(code, out, err)

    return run_it


@pytest.fixture(scope="session")
def adb_server() -> Iterator[None]:
    """Its start takes half a second."""
    with own_adb_server():
        yield


@pytest.fixture
def device(adb_server: None, tmp_path: Path) -> Iterator[FakeDevice]:
    """This machine behind the real adb server, as root."""
    find_parts()
    device = FakeDevice(tmp_path / "device")
    with connected(device):
        yield device
