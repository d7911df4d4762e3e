"""The wrap property and the shim in the app's folder: there while a session runs, as before afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from memleak_android.host.device.android_app import App
from memleak_android.host.device.local_channel import LocalChannel
from memleak_android.host.device.local_machine import LocalMachine
from memleak_android.host.device.wrap_property import WrappedApp
from memleak_android.host.errors import DeviceError

PROCESS = "com.example.app"


class Device(LocalMachine):
    """This machine, with a getprop and a setprop that keep properties as files."""

    name = "device x"

    def __init__(self, folder: Path, setprop: str = 'printf %s "$2" >"$PROPERTIES/$1"') -> None:
        self.properties, self.app_folder = folder / "properties", folder / "app"
        self.tools = folder / "bin"
        for made in (self.properties, self.app_folder, self.tools):
            made.mkdir()
        for name, script in (("getprop", 'cat "$PROPERTIES/$1" 2>/dev/null; echo'), ("setprop", setprop)):
            (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.tools / name).chmod(0o755)

    def open_agent(self, argv: Sequence[str], *, as_root: bool = False, run_as: str = "") -> LocalChannel:
        assert as_root
        words = ["env", f"PROPERTIES={self.properties}", f"PATH={self.tools}:{os.environ['PATH']}", *argv]
        return LocalChannel(["/usr/bin/env", *words[1:]])

    def value(self) -> str | None:
        path = self.properties / f"wrap.{PROCESS}"
        return path.read_text() if path.exists() else None


def app(device: Device, data_dir: str | None = None) -> App:
    return App(
        PROCESS, 0, os.getuid(), True, False, "", (), data_dir or os.path.relpath(device.app_folder), ""
    )


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.chdir(tmp_path)  # a temporary folder's full path is longer than a property may be
    (tmp_path / "shim").write_bytes(b"the shim")
    return Device(tmp_path)


def test_the_property_and_the_file_are_there_for_a_while(device: Device) -> None:
    (device.properties / f"wrap.{PROCESS}").write_text("logwrapper")
    with WrappedApp(device, app(device), PROCESS, "shim", "name:0123456789abcdef"):
        (folder,) = device.app_folder.iterdir()
        assert device.value() == f"LD_PRELOAD=app/{folder.name}/m.so"
        assert (folder / "m.so").read_bytes() == b"the shim"
        assert (folder / "m.so").stat().st_mode & 0o777 == 0o755
        assert (folder / "m.so.session").read_text() == "name:0123456789abcdef\n"
    assert device.value() == "logwrapper"
    assert not list(device.app_folder.iterdir())


def test_a_name_that_a_shell_would_read(device: Device) -> None:
    odd = "it's;a$(test) `x`"
    with WrappedApp(device, app(device), odd, "shim", "n:1"):
        assert (device.properties / f"wrap.{odd}").read_text().startswith("LD_PRELOAD=app/ml-")
    assert (device.properties / f"wrap.{odd}").read_text() == ""


def test_a_value_that_is_too_long_is_never_set(device: Device) -> None:
    with pytest.raises(DeviceError) as caught:
        WrappedApp(device, app(device, "/data/data/" + "x" * 60), PROCESS, "shim", "n:1")
    assert str(caught.value) == (
        "the property wrap.com.example.app has no room for 97 characters (at most 91);"
        " use --tracer bpf, or a wrap.sh in the app"
    )
    assert device.value() is None


def test_a_property_that_may_not_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shim").write_bytes(b"")
    device = Device(tmp_path, setprop="exit 1")
    with pytest.raises(DeviceError) as caught:
        WrappedApp(device, app(device), PROCESS, "shim", "n:1")
    assert "setprop wrap.com.example.app had no effect" in str(caught.value)
    assert not list(device.app_folder.iterdir())


def test_an_app_without_a_folder(device: Device) -> None:
    with pytest.raises(
        DeviceError, match=r"wrap\.com\.example\.app could not be set on device x: mkdir: .*No such file"
    ):
        WrappedApp(device, app(device, "gone"), PROCESS, "shim", "n:1")
    assert device.value() is None
