"""`--reachability` of apps: blocks of every kind, whichever way the app is entered, in 64 bits (tagged pointers too) and in 32."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.tracers.android.wrap import wrap_script
from tests.emulator.phone.apps import ANDROID, APPS, App, abis
from tests.emulator.phone.boot import booted
from tests.emulator.phone.compiler import compiled, cross
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import check_clean, run
from tests.host.session.test_reachability import kinds_of
from tests.support.live_terminal import Terminal
from tests.support.workloads import PROGRAM

pytestmark = pytest.mark.emulator

APP64, APP32 = (next(app for app in APPS if app.package == f"com.example.leaky{bits}") for bits in ("", "32"))
# By size, in tests/emulator/phone/android/blocks_app.c.
KINDS = {
    **dict.fromkeys((10007, 10009), "definitely_lost"),
    10037: "indirectly_lost",
    10039: "possibly_lost",
    **dict.fromkeys((10061, 10067, 10069), "still_reachable"),
}


def put_library(machine: Machine, app: App) -> None:
    """The app's own library is one that plants blocks; its activity runs every two seconds."""
    compiler = cross(app.abi.compiler.removesuffix("++") + "cc")
    flags = ("-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libleaky.so", "-Wl,--build-id")
    made = compiled("libleaky.so", compiler, flags, [ANDROID / "blocks_app.c"])
    path = "/data/local/tmp/blocks_app.so"
    assert machine.adb("push", made, path).returncode == 0
    code, out = machine.root_shell(
        f"cp {path} {app.library}.new && mv {app.library}.new {app.library} && chmod 755 {app.library}; rm {path}"
    )
    assert code == 0, out


def begin(machine: Machine, app: App) -> int:
    machine.shell(f"am force-stop {app.package}; am start -n {app.package}/.MainActivity --ei every 2")
    return machine.wait_for_process(app.package)


def put_libraries(machine: Machine) -> None:
    for app in (APP64, APP32):
        if app.abi in abis():
            put_library(machine, app)


@pytest.fixture(scope="module")
def stock(stock: Machine) -> Machine:
    put_libraries(stock)
    return stock


@pytest.fixture(scope="module")
def rooted() -> Iterator[Machine]:
    with booted() as machine:
        put_libraries(machine)
        yield machine


def looked_at(machine: Machine, tmp_path: Path, app: App, *words: str | Path) -> tuple[dict[str, Any], str]:
    path = tmp_path / "report.json"
    done = run(machine, "-v", "--reachability", "--json", path, "--duration", "7s", *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"stood still for \d+\.\d ms", done.stdout), done.stdout
    check_clean(machine, app.package)
    report: dict[str, Any] = json.loads(path.read_text())
    return report, done.stderr


def check_kinds(report: dict[str, Any], rounds: int = 2) -> None:
    """Each planted block has its kind, and each size as many as the others: those of a round live and are judged together."""
    found = {(size, kind): count for (kind, size), count in kinds_of(report).items() if size in KINDS}
    assert {size: kind for size, kind in found} == KINDS, found
    assert len(found) == len(KINDS) and set(found.values()) == {max(found.values())}, found
    assert max(found.values()) >= rounds


def test_an_app_that_loads_the_shim(stock: Machine, tmp_path: Path) -> None:
    """Attached without root: `attach-agent`, and a look as the app itself."""
    pid = begin(stock, APP64)
    report, err = looked_at(stock, tmp_path, APP64, "--package", APP64.package)
    assert "measuring by plt: no root" in err and "ptrace" not in err
    check_kinds(report)
    assert stock.wait_for_process(APP64.package) == pid


@pytest.mark.parametrize("app", [pytest.param(APP64, marks=pytest.mark.proof), APP32], ids=["arm64", "arm32"])
def test_an_app_from_its_start_by_its_own_script(stock: Machine, app: App, tmp_path: Path) -> None:
    """wrap.sh and `run-as`, without root; words and pointers of 32 bits in the second app."""
    if app.abi not in abis():
        pytest.skip(f"{app.abi.compiler} is not installed")
    path = f"{Path(app.library).parent}/wrap.sh"
    stock.root_shell(f"cat >{path} <<'END'\n{wrap_script(app.package)}END\nchmod 755 {path}")
    try:
        report, _ = looked_at(stock, tmp_path, app, "--package", app.package, "--launch")
    finally:
        stock.root_shell(f"rm {path}")
    assert report["target"]["tracer"] == "preload"
    check_kinds(report, rounds=1)


@pytest.mark.parametrize(
    ("tracer", "by"),
    [
        *(("bpf", "--package"), ("plt", "--pid")),
        *(pytest.param(*one, marks=pytest.mark.proof) for one in (("plt", "--package"), ("bpf", "--pid"))),
    ],
)
def test_an_app_by_root(rooted: Machine, tracer: str, by: str, tmp_path: Path) -> None:
    pid = begin(rooted, APP64)
    named = {"--package": APP64.package, "--pid": str(pid)}[by]
    report, _ = looked_at(rooted, tmp_path, APP64, by, named, "--tracer", tracer)
    assert report["target"]["tracer"] == tracer
    check_kinds(report)
    assert rooted.wait_for_process(APP64.package) == pid


def test_the_live_view_of_an_app_by_its_process_id(rooted: Machine, tmp_path: Path) -> None:
    """`r` looks while the session goes on; rows are named after the worst kind of their blocks."""
    pid = begin(rooted, APP64)
    words = (*PROGRAM, "--serial", rooted.serial, "--live", "--pid", str(pid), "--duration", "60s")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    terminal = Terminal([*words], {**os.environ, **rooted.environment, **own}, 140, 40, cwd=tmp_path)
    try:
        terminal.wait_for(lambda text: len(re.findall(r"\bmake\b", text)) >= len(KINDS), "a round of blocks")
        terminal.press("r")
        terminal.wait_for(lambda text: "stood still for" in text, "what the look cost")
        for kind in ("definitely", "indirectly", "possibly", "still reach"):
            terminal.wait_for(lambda text, kind=kind: kind in text, kind)  # type: ignore[misc]
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
    check_clean(rooted, APP64.package)
