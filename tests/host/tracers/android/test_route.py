"""Choice of the route into an app, and the reasons against the others."""

import os
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.tracers.android.route import Situation, choose_route, routes
from memleak_android.host.tracers.android.wrap import app_arch, wrap_script
from memleak_android.host.tracers.local.start import TracerName, instead_of_bpf

DEBUGGABLE = App("com.example.app", 0, 10123, True, False, "arm64-v8a", (), "")
CLOSED = "run-as: package not debuggable: com.example.app"
RELEASE = App("com.example.app", 0, 10123, False, True, "", (), CLOSED)


def situation(
    app: App | None = DEBUGGABLE,
    root: bool = True,
    bpf: str = "",
    is_64: bool = True,
    api: int = 34,
    scriptless: bool = False,
) -> Situation:
    return Situation("device x", root, bpf, is_64, app, api, scriptless)


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
        (situation(root=False, api=26), "auto", "agent"),
        (situation(root=False, api=25), "auto", "ptrace"),
        (situation(), "plt", "startup"),
        (situation(root=False, scriptless=True), "auto", "startup"),
        (situation(root=False, scriptless=True, api=30), "auto", "startup"),
        (situation(root=False, scriptless=True, api=29), "auto", "agent"),
        (situation(scriptless=True), "auto", "bpf"),
        (situation(), "auto", "running bpf"),
        (situation(bpf="no uprobes"), "auto", "running agent"),
        (situation(root=False), "auto", "running agent"),
        (situation(root=False, api=0), "auto", "running ptrace"),
        (situation(None, root=False), "auto", "running ptrace"),
        (situation(root=False, scriptless=True), "auto", "running agent"),
    ],
)
def test_the_best_open_route(found: Situation, name: TracerName, route: str) -> None:
    """What runs already is not started anew."""
    is_running = route.startswith("running ")
    assert choose_route(name, found, may_restart=not is_running).name == route.removeprefix("running ")


@pytest.mark.parametrize(
    ("found", "name", "may_restart", "line"),
    [
        (
            situation(is_64=False), "auto", False,
            ("com.example.app can be measured from its start only (bpf: 32-bit code, where the kernel places no"
            " uprobes; startup: 32-bit code, which has not been tried; agent: 32-bit code, which has not been tried; ptrace: 32-bit code, which a 64-bit agent does not enter); add --launch: the shim has to be"
            " there from the start"),
        ),
        (
            situation(is_64=False), "bpf", True,
            ("com.example.app cannot be measured on device x (bpf: 32-bit code, where the kernel places no uprobes);"
            " --tracer preload is open (add --launch: the shim has to be there from the start)"),
        ),
        (
            situation(None), "preload", False,
            ("the process cannot be measured on device x (wrap: the shim cannot attach to a running process; name the"
            " app by --package; run-as: only for apps); --tracer bpf is open"),
        ),
        (
            situation(RELEASE, root=False), "auto", True,
            ("com.example.app cannot be measured on device x (bpf: no root; wrap: no root to set the wrap property;"
            " run-as: run-as: package not debuggable: com.example.app; startup: run-as: package not debuggable:"
            " com.example.app; agent: run-as: package not debuggable: com.example.app; ptrace: run-as: package not debuggable:"
            " com.example.app); it is profileable: use heapprofd"
            " (tools/heap_profile android -n com.example.app), or a debuggable build"),
        ),
        (
            situation(root=False, api=26), "preload", True,
            ("com.example.app cannot be measured on device x (wrap: no root to set the wrap property;"
            " run-as: wrap.sh needs API level 27, the device has 26); --tracer plt is open"),
        ),
        (
            situation(root=False, api=29, scriptless=True), "preload", True,
            ("com.example.app cannot be measured on device x (wrap: no root to set the wrap property; run-as: the app"
            " carries no wrap.sh (`doctor --package` prints one)); --tracer plt is open"),
        ),
        (
            situation(None, root=False), "bpf", True,
            "the process cannot be measured on device x (bpf: no root); --tracer plt is open",
        ),
    ],
)  # fmt: skip
def test_every_closed_route_is_reported(
    found: Situation, name: TracerName, may_restart: bool, line: str
) -> None:
    with pytest.raises(TracerError) as caught:
        choose_route(name, found, may_restart=may_restart)
    assert str(caught.value) == line


@pytest.mark.parametrize("tracer", ["auto", "preload"])
def test_routes_without_pairs_are_reported(tracer: TracerName) -> None:
    with pytest.raises(TracerError, match="wrap: it does not support --pairs; run-as: it does not support"):
        choose_route(tracer, situation(root=True, bpf="no uprobes"), may_restart=True, with_pairs=True)
    assert choose_route("auto", situation(), may_restart=True, with_pairs=True).name == "bpf"
    process = situation(None, root=False)
    assert choose_route("auto", process, may_restart=False, with_pairs=True).name == "ptrace"


def test_the_shim_instead_of_bpf_says_which_pairs_it_reaches() -> None:
    assert instead_of_bpf("", True) == ""
    assert instead_of_bpf("no root", False) == "no root"
    assert instead_of_bpf("no root", True).startswith("no root; of --pairs, the shim traces exported")


def test_routes_are_listed_best_first() -> None:
    assert " ".join(route.name for route in routes(situation())) == "bpf wrap run-as startup agent ptrace"


@pytest.mark.parametrize("folder", ["data", "user/10", ""])
def test_the_script_that_an_app_carries(folder: str, tmp_path: Path) -> None:
    """Run here, with a shim that no linker takes: it says so, and the program runs all the same."""
    shim = tmp_path / folder / "com.example.app" / "memleak-android-7-a" / "libmemleak.so"
    if folder:
        shim.parent.mkdir(parents=True)
        shim.write_bytes(b"no library")
    (tmp_path / "id").write_text("#!/bin/sh\necho 1010123\n")
    (tmp_path / "id").chmod(0o755)
    script = tmp_path / "wrap.sh"
    script.write_text(wrap_script("com.example.app").replace(" /data/", f" {tmp_path}/"))
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", script, "echo", "a  b"], capture_output=True, text=True, check=True, env=path
    )
    assert done.stdout == "a  b\n"
    assert (str(shim) in done.stderr) == bool(folder)


def test_an_app_runs_as_its_native_code_does() -> None:
    machine = LocalMachine()
    assert app_arch(machine, DEBUGGABLE) == "arm64"
    assert app_arch(machine, RELEASE) == machine.arch
    with pytest.raises(TargetError, match="runs as mips, for which there is no shim"):
        app_arch(machine, App("a.b", 0, 1, True, False, "mips", (), ""))
