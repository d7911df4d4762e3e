"""Which way into an app is taken, and what is said of the closed ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from memleak_android.host.device.android_app import App
from memleak_android.host.device.local_machine import LocalMachine
from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.tracers.choice import TracerName
from memleak_android.host.tracers.remote_preload import app_arch, wrap_script
from memleak_android.host.tracers.route import Situation, choose_route, ways

DEBUGGABLE = App("com.example.app", 0, 10123, True, False, "arm64-v8a", (), "/data/data/com.example.app", "")
RELEASE = App(
    "com.example.app", 0, 10123, False, True, "", (), "/d", "run-as: package not debuggable: com.example.app"
)


def situation(
    app: App | None = DEBUGGABLE, root: bool = True, bpf: str = "", is_64: bool = True, api: int = 34
) -> Situation:
    return Situation("device x", root, bpf, is_64, app, api)


@pytest.mark.parametrize(
    ("found", "name", "route"),
    [
        (situation(), "auto", "bpf"),
        (situation(None), "auto", "bpf"),
        (situation(), "preload", "wrap"),
        (situation(bpf="no uprobes"), "auto", "wrap"),
        (situation(is_64=False), "auto", "wrap"),
        (situation(RELEASE, is_64=False), "auto", "wrap"),
        (situation(root=False), "auto", "run-as"),
        (situation(root=False, api=0), "preload", "run-as"),
    ],
)
def test_the_best_open_route(found: Situation, name: TracerName, route: str) -> None:
    assert choose_route(name, found, may_restart=True).name == route


@pytest.mark.parametrize(
    ("found", "name", "may_restart", "line"),
    [
        (
            situation(is_64=False), "auto", False,
            ("com.example.app can be measured from its start only (bpf: 32-bit code, where the kernel places no"
            " uprobes); add --launch: the shim has to be there from the start"),
        ),
        (
            situation(RELEASE, root=False), "auto", True,
            ("com.example.app cannot be measured on device x (bpf: no root; wrap: no root to set the wrap property;"
            " run-as: run-as: package not debuggable: com.example.app); it is profileable: use heapprofd"
            " (tools/heap_profile android -n com.example.app), or a debuggable build"),
        ),
        (
            situation(root=False, api=26), "auto", True,
            ("com.example.app cannot be measured on device x (bpf: no root; wrap: no root to set the wrap property;"
            " run-as: wrap.sh needs API level 27, the device has 26); use a debuggable build with the wrap.sh that"
            " `doctor --package` prints, or root the device"),
        ),
        (
            situation(None, root=False), "bpf", True,
            "the process cannot be measured on device x (bpf: no root); root the device (adb root, or su)",
        ),
    ],
)  # fmt: skip
def test_every_closed_route_is_told(found: Situation, name: TracerName, may_restart: bool, line: str) -> None:
    with pytest.raises(TracerError) as caught:
        choose_route(name, found, may_restart=may_restart)
    assert str(caught.value) == line


def test_routes_are_told_the_best_first() -> None:
    assert [way.name for way in ways(situation())] == ["bpf", "wrap", "run-as"]


@pytest.mark.parametrize("is_there", [True, False])
def test_the_script_that_an_app_carries(is_there: bool, tmp_path: Path) -> None:
    """Run here, with a shim that no linker takes: it says so, and the program runs all the same."""
    shim = tmp_path / "memleak-android-7-a" / "libmemleak.so"
    if is_there:
        shim.parent.mkdir()
        shim.write_bytes(b"no library")
    text = wrap_script("com.example.app").replace("/data/data/com.example.app", str(tmp_path))
    script = tmp_path / "wrap.sh"
    script.write_text(text)
    done = subprocess.run(["sh", script, "echo", "a  b"], capture_output=True, text=True, check=True)
    assert done.stdout == "a  b\n"
    assert (str(shim) in done.stderr) == is_there


def test_an_app_runs_as_its_native_code_does() -> None:
    machine = LocalMachine()
    assert app_arch(machine, DEBUGGABLE) == "arm64"
    assert app_arch(machine, RELEASE) == machine.arch
    with pytest.raises(TargetError, match="runs as mips, for which there is no shim"):
        app_arch(machine, App("a.b", 0, 1, True, False, "mips", (), "", ""))
