"""A phone that gives no root: a debuggable app by its own wrap.sh, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.tracers.remote_preload import wrap_script
from tests.emulator.apps import APPS, ARM64, libraries
from tests.emulator.boot import start
from tests.emulator.debian import Unavailable
from tests.emulator.machine import Machine, Options
from tests.emulator.test_sessions import APP, check_clean, check_planted, report, run

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def stock() -> Iterator[Machine]:
    """Its app brings the wrap.sh that doctor prints."""
    try:
        machine = start(Options(build="user"))
    except Unavailable as error:
        pytest.skip(str(error))
    place = str(Path(next(app for app in APPS if app.package == APP).library).parent / "wrap.sh")
    machine.root_shell(f"cat >{place} <<'END'\n{wrap_script(APP)}END\nchmod 755 {place}")
    yield machine
    machine.stop()


def test_a_debuggable_app(stock: Machine, tmp_path: Path) -> None:
    found = report(stock, tmp_path, libraries(ARM64, stripped=False).values(), APP)
    assert (found["target"]["arch"], found["target"]["tracer"]) == ("arm64", "preload")
    check_planted(found)
    check_clean(stock, APP)


def test_a_debuggable_app_that_runs_already_is_not_restarted_unasked(stock: Machine) -> None:
    stock.shell(f"am start -n {APP}/.MainActivity")
    before = stock.root_shell(f"pidof {APP}")
    done = run(stock, "--package", APP)
    assert (done.returncode, done.stdout) == (5, "")
    assert (
        "can be measured from its start only (bpf: no root; wrap: no root to set the wrap property)"
        in done.stderr
    )
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
