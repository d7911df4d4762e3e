"""The agent in an app's code_cache/startup_agents: there while a session runs, and the folder as before afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.app import App, lacks_wrap_script
from memleak_android.host.machine.adb.startup_agents import AGENTS_FOLDER, SESSION_FILE, StartupAgent
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.target import AppUser

APP = App("com.example.app", 10, 10123, True, False, "arm64-v8a", (), "")
LINE = "n:0123456789abcdef mode=plt"
STALE = "1-0123456789abcdef-libmemleak.so"  # process 1 is no keeper


class Device(LocalMachine):
    """This machine; who becomes the app stands in its folder, as run-as has it."""

    name = "device x"

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        (self.data / "code_cache").mkdir(parents=True)
        self.shim = folder / "shim"
        self.shim.write_bytes(b"the shim")

    def open_agent(
        self, argv: Sequence[str], *, as_root: bool = False, run_as: AppUser | None = None
    ) -> LocalChannel:
        assert run_as == AppUser("com.example.app", 10)
        return LocalChannel(["/usr/bin/env", "-C", str(self.data), *argv])

    def listed(self) -> list[str]:
        return sorted(str(path.relative_to(self.data)) for path in self.data.rglob("*"))

    def put(self) -> StartupAgent:
        return StartupAgent(self, APP, str(self.shim), LINE)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_the_agent_and_its_session_are_there_for_a_while(device: Device) -> None:
    with device.put() as agent:
        path = Path(agent.path)
        assert path.parent == device.data / AGENTS_FOLDER
        assert [path] == list(path.parent.iterdir())  # all that the runtime would load
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"the shim", 0o700)
        session = device.data / SESSION_FILE
        assert (session.read_text(), session.stat().st_mode & 0o777) == (f"{LINE}\n", 0o600)
    assert device.listed() == ["code_cache"]


def test_agents_of_others_stay(device: Device) -> None:
    other = device.data / AGENTS_FOLDER / "libjvmtiagent.so"
    other.parent.mkdir()
    other.touch()
    with device.put():
        assert len(list(other.parent.iterdir())) == 2
    assert device.listed() == ["code_cache", AGENTS_FOLDER, f"{AGENTS_FOLDER}/libjvmtiagent.so"]


def test_a_folder_that_was_empty_stays(device: Device) -> None:
    (device.data / AGENTS_FOLDER).mkdir()
    with device.put():
        pass
    assert device.listed() == ["code_cache", AGENTS_FOLDER]


def test_what_a_killed_keeper_left_goes(device: Device) -> None:
    (device.data / AGENTS_FOLDER).mkdir()
    (device.data / AGENTS_FOLDER / STALE).touch()
    (device.data / SESSION_FILE).write_text("old:1")
    with device.put() as agent:
        assert [path.name for path in (device.data / AGENTS_FOLDER).iterdir()] == [Path(agent.path).name]
    assert device.listed() == ["code_cache"]


def test_two_sessions_on_one_app(device: Device) -> None:
    with device.put():
        before = device.listed()
        with pytest.raises(DeviceError) as caught:
            device.put()
        assert str(caught.value) == (
            "could not copy files into code_cache/startup_agents of com.example.app of user 10 on device x: another"
            " session starts it; attach to it while it runs, without --launch"
        )
        assert device.listed() == before
    assert device.listed() == ["code_cache"]


def test_a_shim_that_cannot_be_read_leaves_nothing(device: Device) -> None:
    device.shim.unlink()
    with pytest.raises(DeviceError, match="No such file"):
        device.put()
    assert device.listed() == ["code_cache"]


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        ({}, True),
        ({"lib/arm64/libapp.so": ""}, True),
        ({"lib/arm64/wrap.sh": "LD_PRELOAD=$shim exec # memleak-android"}, False),
        ({"lib/arm64/wrap.sh": "exec # of another tool"}, True),
    ],
)
def test_whether_an_app_carries_our_wrap_script(tmp_path: Path, files: dict[str, str], lacks: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    app = App("a.b", 0, 1, True, False, "", (os.fspath(tmp_path / "base.apk"),), "")
    assert lacks_wrap_script(LocalMachine(), app) == lacks
    nowhere = App("a.b", 0, 1, True, False, "", (os.fspath(tmp_path / "absent" / "base.apk"),), "")
    assert not lacks_wrap_script(LocalMachine(), nowhere)  # what cannot be seen is not denied
