"""A phone that gives no root: a debuggable app by its own wrap.sh, and what is said of the others."""

from pathlib import Path

import pytest

from memleak_android.host.tracers.android.wrap import wrap_script
from tests.emulator.phone.apps import APPS
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import APP, check_clean, check_planted, report, run

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def stock(stock: Machine) -> Machine:
    """Its app brings the wrap.sh that doctor prints."""
    script = str(Path(next(app for app in APPS if app.package == APP).library).parent / "wrap.sh")
    stock.root_shell(f"cat >{script} <<'END'\n{wrap_script(APP)}END\nchmod 755 {script}")
    return stock


def test_a_debuggable_app(stock: Machine, tmp_path: Path) -> None:
    found = report(stock, tmp_path, APP)
    assert (found["target"]["arch"], found["target"]["tracer"]) == ("arm64", "preload")
    check_planted(found)
    counted = {part["name"]: part["proportional"] for part in found["memory"]["parts"]}
    assert counted["driver_graphics"] == (10_004 + 307) * 1024, (
        "as tests/emulator/phone/android/package.c has it"
    )
    assert counted["files"] > 0
    check_clean(stock, APP)


def test_code_that_only_the_app_may_read(stock: Machine, tmp_path: Path) -> None:
    """As an app that has downloaded it into its own folder: the shell cannot pull it, the app can."""
    app = next(app for app in APPS if app.package == APP)
    stock.root_shell(f"chown {app.uid} {app.library}; chmod 500 {app.library}")
    _, seen_by_shell, _ = stock.shell(f"cat {app.library} | wc -c")
    found = report(stock, tmp_path, APP)
    stock.root_shell(f"chown 1000 {app.library}; chmod 755 {app.library}")
    assert seen_by_shell.split()[-1] == "0"
    check_planted(found)
    check_clean(stock, APP)


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
