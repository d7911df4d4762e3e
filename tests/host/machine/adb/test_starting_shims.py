"""The shim where an app starts with it, by the wrap property or as an agent: there for a session, as before afterwards."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.app import App, lacks_wrap_script
from memleak_android.host.machine.adb.keeper import (
    AGENTS_FOLDER,
    APPS_FOLDER,
    SESSION_FILE,
    StartupAgent,
    WrappedApp,
    wrap_property,
)
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.target import AppUser

PROCESS = "com.example.app"
APP = App(PROCESS, 10, 10123, True, False, "arm64-v8a", (), "")
NAME = f"wrap.{PROCESS}"
LINE = "n:0123456789abcdef mode=plt"
# Process 1 is no keeper.
STALE_AGENT, STALE_FOLDER = "1-0123456789abcdef-libmemleak.so", "memleak-android-1-0123456789abcdef"


class Device(LocalMachine):
    name = "device x"

    def __init__(self, folder: Path) -> None:
        self.shim = folder / "shim"
        self.shim.write_bytes(b"the shim")


class Wrapping(Device):
    """This machine, with a getprop and a setprop that keep properties as files."""

    def __init__(self, folder: Path, setprop: str = 'printf %s "$2" >"$PROPERTIES/$1"') -> None:
        super().__init__(folder)
        self.properties, self.apps, self.tools = (folder / name for name in ("properties", "apps", "bin"))
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
        app = replace(APP, user=0, app_id=os.getgid())
        return WrappedApp(self, app, name, shim or str(self.shim), LINE, folder or str(self.apps))


class Loading(Device):
    """This machine; who becomes the app stands in its folder, as run-as has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        (self.data / "code_cache").mkdir(parents=True)

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
def wrapping(tmp_path: Path) -> Wrapping:
    return Wrapping(tmp_path)


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    return Loading(tmp_path)


def test_the_property_and_the_file_are_there_for_a_while(wrapping: Wrapping) -> None:
    (wrapping.properties / NAME).write_text("logwrapper")
    with wrapping.wrap():
        (folder,) = wrapping.apps.iterdir()
        assert wrapping.value() == f"LD_PRELOAD={folder}/m.so"
        assert folder.stat().st_mode & 0o777 == 0o711
        assert (folder / "m.so").read_bytes() == b"the shim"
        assert (folder / "m.so").stat().st_mode & 0o777 == 0o755
        session = folder / "m.so.session"
        assert session.read_text() == f"{LINE}\n"
        assert (session.stat().st_mode & 0o777, session.stat().st_gid) == (0o640, os.getgid())
    assert wrapping.value() == "logwrapper"
    assert not list(wrapping.apps.iterdir())


def test_root_writes_and_deletes_nothing_behind_a_link(wrapping: Wrapping, tmp_path: Path) -> None:
    """Only the system may write where the shim is put, but what was planted there all the same is not followed."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    (wrapping.apps / STALE_FOLDER).symlink_to(victim)
    (wrapping.properties / NAME).write_text(f"LD_PRELOAD={wrapping.apps}/{STALE_FOLDER}/m.so")
    with wrapping.wrap():
        assert not (wrapping.apps / STALE_FOLDER).is_symlink()
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


def test_a_name_that_a_shell_would_read(wrapping: Wrapping) -> None:
    odd = "wrap.it's;a$(test) `x`"
    with wrapping.wrap(odd):
        assert str(wrapping.value(odd)).startswith(f"LD_PRELOAD={wrapping.apps}/memleak-android-")
    assert wrapping.value(odd) == ""


def test_a_property_of_a_killed_keeper_goes_and_is_not_restored(wrapping: Wrapping) -> None:
    (wrapping.apps / STALE_FOLDER).mkdir()
    (wrapping.apps / STALE_FOLDER / "m.so").touch()
    (wrapping.properties / NAME).write_text(f"LD_PRELOAD={wrapping.apps}/{STALE_FOLDER}/m.so")
    with wrapping.wrap():
        (folder,) = wrapping.apps.iterdir()
        assert folder.name != STALE_FOLDER and wrapping.value() == f"LD_PRELOAD={folder}/m.so"
    assert wrapping.value() == "" and not list(wrapping.apps.iterdir())


def test_a_foreign_value_is_restored_even_if_its_file_is_gone(wrapping: Wrapping) -> None:
    (wrapping.properties / NAME).write_text("LD_PRELOAD=/data/local/tmp/libasan.so")
    with wrapping.wrap():
        pass
    assert wrapping.value() == "LD_PRELOAD=/data/local/tmp/libasan.so"


def test_two_sessions_on_one_property(wrapping: Wrapping) -> None:
    with wrapping.wrap():
        value = wrapping.value()
        with pytest.raises(DeviceError, match=r"could not be set on device x: another session uses it"):
            wrapping.wrap()
        assert wrapping.value() == value
        assert len(list(wrapping.apps.iterdir())) == 1
    assert wrapping.value() == ""


def test_a_property_that_may_not_be_set(tmp_path: Path) -> None:
    wrapping = Wrapping(tmp_path, setprop="exit 1")
    with pytest.raises(DeviceError, match=r"setprop wrap\.com\.example\.app had no effect"):
        wrapping.wrap()
    assert not list(wrapping.apps.iterdir())


@pytest.mark.parametrize(
    ("wrong", "reason"), [({"shim": "/no/such"}, "cat: .*No such file"), ({"folder": "/gone"}, ".*gone")]
)
def test_a_path_that_is_not_there(wrapping: Wrapping, wrong: dict[str, str], reason: str) -> None:
    with pytest.raises(DeviceError, match=rf"could not be set on device x: {reason}"):
        wrapping.wrap(**wrong)
    assert wrapping.value() is None and not list(wrapping.apps.iterdir())


def test_an_app_of_unknown_uid(wrapping: Wrapping) -> None:
    with pytest.raises(DeviceError, match=r"device x does not report the uid of com\.example\.app"):
        WrappedApp(wrapping, replace(APP, app_id=None), NAME, str(wrapping.shim), "n:1", str(wrapping.apps))


def test_the_agent_and_its_session_are_there_for_a_while(loading: Loading) -> None:
    with loading.put() as agent:
        path = Path(agent.path)
        assert path.parent == loading.data / AGENTS_FOLDER
        assert [path] == list(path.parent.iterdir())  # all that the runtime would load
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"the shim", 0o700)
        session = loading.data / SESSION_FILE
        assert (session.read_text(), session.stat().st_mode & 0o777) == (f"{LINE}\n", 0o600)
    assert loading.listed() == ["code_cache"]


def test_agents_of_others_stay(loading: Loading) -> None:
    other = loading.data / AGENTS_FOLDER / "libjvmtiagent.so"
    other.parent.mkdir()
    other.touch()
    with loading.put():
        assert len(list(other.parent.iterdir())) == 2
    assert loading.listed() == ["code_cache", AGENTS_FOLDER, f"{AGENTS_FOLDER}/libjvmtiagent.so"]


def test_a_folder_that_was_empty_stays(loading: Loading) -> None:
    (loading.data / AGENTS_FOLDER).mkdir()
    with loading.put():
        pass
    assert loading.listed() == ["code_cache", AGENTS_FOLDER]


def test_what_a_killed_keeper_left_goes(loading: Loading) -> None:
    (loading.data / AGENTS_FOLDER).mkdir()
    (loading.data / AGENTS_FOLDER / STALE_AGENT).touch()
    (loading.data / SESSION_FILE).write_text("old:1")
    with loading.put() as agent:
        assert [path.name for path in (loading.data / AGENTS_FOLDER).iterdir()] == [Path(agent.path).name]
    assert loading.listed() == ["code_cache"]


def test_two_sessions_on_one_app(loading: Loading) -> None:
    with loading.put():
        before = loading.listed()
        with pytest.raises(DeviceError) as caught:
            loading.put()
        assert str(caught.value) == (
            "could not copy files into code_cache/startup_agents of com.example.app of user 10 on device x: another"
            " session starts it; attach to it while it runs, without --launch"
        )
        assert loading.listed() == before
    assert loading.listed() == ["code_cache"]


def test_a_shim_that_cannot_be_read_leaves_nothing(loading: Loading) -> None:
    loading.shim.unlink()
    with pytest.raises(DeviceError, match="No such file"):
        loading.put()
    assert loading.listed() == ["code_cache"]


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
    app = replace(APP, paths=(f"{tmp_path}/base.apk",))
    assert lacks_wrap_script(LocalMachine(), app) == lacks
    nowhere = replace(APP, paths=(f"{tmp_path}/absent/base.apk",))
    assert not lacks_wrap_script(LocalMachine(), nowhere)  # what cannot be seen is not denied
