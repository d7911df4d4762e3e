"""The wrap property and the shim where apps may run it: there while a session runs, as before afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.adb.wrap_property import APPS_FOLDER, WrappedApp, wrap_property
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.target import AppUser

PROCESS = "com.example.app"
NAME = f"wrap.{PROCESS}"
STALE = "memleak-android-1-0123456789abcdef"  # process 1 is no keeper


class Device(LocalMachine):
    """This machine, with a getprop and a setprop that keep properties as files."""

    name = "device x"

    def __init__(self, folder: Path, setprop: str = 'printf %s "$2" >"$PROPERTIES/$1"') -> None:
        self.properties, self.apps, self.tools = (folder / name for name in ("properties", "apps", "bin"))
        self.shim = folder / "shim"
        self.shim.write_bytes(b"the shim")
        for made in (self.properties, self.apps, self.tools):
            made.mkdir()
        for name, script in (("getprop", 'cat "$PROPERTIES/$1" 2>/dev/null; echo'), ("setprop", setprop)):
            (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.tools / name).chmod(0o755)

    def open_agent(
        self, argv: Sequence[str], *, as_root: bool = False, run_as: AppUser | None = None
    ) -> LocalChannel:
        assert as_root
        words = [f"PROPERTIES={self.properties}", f"PATH={self.tools}:{os.environ['PATH']}", *argv]
        return LocalChannel(["/usr/bin/env", *words])

    def value(self, name: str = NAME) -> str | None:
        path = self.properties / name
        return path.read_text() if path.exists() else None

    def wrap(self, name: str = NAME, shim: str = "", folder: str = "") -> WrappedApp:
        app = App(PROCESS, 0, os.getgid(), True, False, "", (), "")
        return WrappedApp(
            self, app, name, shim or str(self.shim), "n:0123456789abcdef", folder or str(self.apps)
        )


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_the_property_and_the_file_are_there_for_a_while(device: Device) -> None:
    (device.properties / NAME).write_text("logwrapper")
    with device.wrap():
        (folder,) = device.apps.iterdir()
        assert device.value() == f"LD_PRELOAD={folder}/m.so"
        assert folder.stat().st_mode & 0o777 == 0o711
        assert (folder / "m.so").read_bytes() == b"the shim"
        assert (folder / "m.so").stat().st_mode & 0o777 == 0o755
        session = folder / "m.so.session"
        assert session.read_text() == "n:0123456789abcdef\n"
        assert (session.stat().st_mode & 0o777, session.stat().st_gid) == (0o640, os.getgid())
    assert device.value() == "logwrapper"
    assert not list(device.apps.iterdir())


def test_root_writes_and_deletes_nothing_behind_a_link(device: Device, tmp_path: Path) -> None:
    """Only the system may write where the shim is put, but what was planted there all the same is not followed."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    (device.apps / STALE).symlink_to(victim)
    (device.properties / NAME).write_text(f"LD_PRELOAD={device.apps}/{STALE}/m.so")
    with device.wrap():
        assert not (device.apps / STALE).is_symlink()
    assert [path.name for path in victim.iterdir()] == ["kept"]


def test_the_longest_value_fits() -> None:
    assert len(f"LD_PRELOAD={APPS_FOLDER}/memleak-android-{1 << 22}-{'0' * 16}/m.so") <= 91


@pytest.mark.parametrize(
    ("process", "level", "name"),
    [
        ("com.example.short", 25, "wrap.com.example.short"),
        ("com.example.a.longer.name", 25, "wrap.com.example.a.longer.name"),
        ("com.example.a.longer.name.still", 25, "wrap.com.example.a.longer.name"),  # a dot would end it
        ("com.example.a.longer.names.still", 25, "wrap.com.example.a.longer.names"),
        ("com.example.a.longer.names.still", 26, "wrap.com.example.a.longer.names.still"),
        ("com.example.a.longer.names.still", 0, "wrap.com.example.a.longer.names.still"),
    ],
)
def test_names_before_android_8_are_short(process: str, level: int, name: str) -> None:
    assert wrap_property(process, level) == name


def test_a_name_that_a_shell_would_read(device: Device) -> None:
    odd = "wrap.it's;a$(test) `x`"
    with device.wrap(odd):
        assert str(device.value(odd)).startswith(f"LD_PRELOAD={device.apps}/memleak-android-")
    assert device.value(odd) == ""


def test_what_a_killed_keeper_left_goes_and_is_not_restored(device: Device) -> None:
    (device.apps / STALE).mkdir()
    (device.apps / STALE / "m.so").touch()
    (device.properties / NAME).write_text(f"LD_PRELOAD={device.apps}/{STALE}/m.so")
    with device.wrap():
        (folder,) = device.apps.iterdir()
        assert folder.name != STALE and device.value() == f"LD_PRELOAD={folder}/m.so"
    assert device.value() == "" and not list(device.apps.iterdir())


def test_a_foreign_value_is_restored_even_if_its_file_is_gone(device: Device) -> None:
    (device.properties / NAME).write_text("LD_PRELOAD=/data/local/tmp/libasan.so")
    with device.wrap():
        pass
    assert device.value() == "LD_PRELOAD=/data/local/tmp/libasan.so"


def test_two_sessions_on_one_app(device: Device) -> None:
    with device.wrap():
        value = device.value()
        with pytest.raises(DeviceError, match=r"could not be set on device x: another session uses it"):
            device.wrap()
        assert device.value() == value
        assert len(list(device.apps.iterdir())) == 1
    assert device.value() == ""


def test_a_property_that_may_not_be_set(tmp_path: Path) -> None:
    device = Device(tmp_path, setprop="exit 1")
    with pytest.raises(DeviceError, match=r"setprop wrap\.com\.example\.app had no effect"):
        device.wrap()
    assert not list(device.apps.iterdir())


def test_a_shim_that_is_not_there(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"could not be set on device x: cat: .*No such file"):
        device.wrap(shim="/no/such")
    assert device.value() is None and not list(device.apps.iterdir())


def test_an_app_of_unknown_uid(device: Device) -> None:
    app = App(PROCESS, 0, None, True, False, "", (), "")
    with pytest.raises(DeviceError, match=r"device x does not report the uid of com\.example\.app"):
        WrappedApp(device, app, NAME, str(device.shim), "n:1", str(device.apps))


def test_a_device_without_a_folder_for_apps(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"could not be set on device x: .*gone"):
        device.wrap(folder="/gone")
    assert device.value() is None
