"""A phone that gives no root: a debuggable app by its own wrap.sh, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.machine.adb.device import AdbDevice
from memleak_android.host.machine.adb.reading_agent import ProcessImages
from memleak_android.host.machine.adb.server import list_devices
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.target import AppUser
from memleak_android.host.tracers.android.wrap import wrap_script
from memleak_android.unwind.cfi.module import Module
from tests.emulator.apps import APPS, ARM64, libraries
from tests.emulator.boot import booted
from tests.emulator.machine import Machine, Options
from tests.emulator.test_sessions import APP, check_clean, check_planted, report, run

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def stock() -> Iterator[Machine]:
    """Its app brings the wrap.sh that doctor prints."""
    with booted(Options(build="user")) as machine:
        script = str(Path(next(app for app in APPS if app.package == APP).library).parent / "wrap.sh")
        machine.root_shell(f"cat >{script} <<'END'\n{wrap_script(APP)}END\nchmod 755 {script}")
        yield machine


def test_a_debuggable_app(stock: Machine, tmp_path: Path) -> None:
    found = report(stock, tmp_path, libraries(ARM64, stripped=False).values(), APP)
    assert (found["target"]["arch"], found["target"]["tracer"]) == ("arm64", "preload")
    check_planted(found)
    counted = {part["name"]: part["proportional"] for part in found["memory"]["parts"]}
    assert counted["driver_graphics"] == (10_004 + 307) * 1024, "as tests/emulator/android/package.c has it"
    assert counted["files"] > 0
    check_clean(stock, APP)


def test_code_that_only_the_app_may_read(stock: Machine, tmp_path: Path) -> None:
    """As an app that has downloaded it into its own folder: the shell cannot pull it, the app can."""
    app = next(app for app in APPS if app.package == APP)
    stock.root_shell(f"chown {app.uid} {app.library}; chmod 500 {app.library}")
    _, seen_by_shell, _ = stock.shell(f"cat {app.library} | wc -c")
    found = report(stock, tmp_path, libraries(ARM64, stripped=False).values(), APP)
    stock.root_shell(f"chown 1000 {app.library}; chmod 755 {app.library}")
    assert seen_by_shell.split()[-1] == "0"
    check_planted(found)
    check_clean(stock, APP)


def test_a_library_as_it_lies_in_the_apps_memory(
    stock: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reads it as the app, which may look into its own processes."""
    app = next(app for app in APPS if app.package == APP)
    stock.shell(f"am start -n {APP}/.MainActivity")
    pid = stock.wait_for_process(APP)
    _, maps = stock.root_shell(f"grep 'r-xp.*{Path(app.library).name}' /proc/{pid}/maps")
    code = parse_maps(maps)[0]
    for name, value in stock.environment.items():
        monkeypatch.setenv(name, value)
    row = next(row for row in list_devices() if row.serial == stock.serial)
    agent = find_binary("memleakd", "arm64")
    with AdbDevice(row).deploy({"memleakd": agent}, run_as=AppUser(APP)) as deployed:
        images = ProcessImages(AdbDevice(row), lambda user: deployed, AppUser(APP))
        assert images.read(int(pid), code, tmp_path / "image") == ""
    stock.shell(f"am force-stop {APP}")
    original = next(
        path for path in libraries(ARM64, stripped=True).values() if path.name == Path(app.library).name
    )
    assert Module.from_path(tmp_path / "image").build_id == Module.from_path(original).build_id != ""


def test_a_debuggable_app_that_runs_already_is_not_restarted_unasked(stock: Machine) -> None:
    stock.shell(f"am start -n {APP}/.MainActivity")
    stock.wait_for_process(APP)
    before = stock.root_shell(f"pidof {APP}")
    done = run(stock, "--package", APP, "--tracer", "preload")
    assert (done.returncode, done.stdout) == (5, "")
    assert "can be measured from its start only" in done.stderr
    assert "wrap: no root to set the wrap property" in done.stderr
    assert stock.root_shell(f"pidof {APP}") == before


@pytest.mark.parametrize(
    ("package", "way_out"),
    [
        ("com.example.release", "use a debuggable build with the wrap.sh that `doctor --package` prints"),
        ("com.example.profileable", "it is profileable: use heapprofd (tools/heap_profile android -n"),
    ],
)
def test_an_app_that_is_closed_to_us(stock: Machine, package: str, way_out: str) -> None:
    done = run(stock, "--package", package, "--launch")
    assert (done.returncode, done.stdout) == (5, "")
    assert f"run-as: package not debuggable: {package}" in done.stderr and way_out in done.stderr
    assert done.stderr.count("\n") == 1
    check_clean(stock, package)
