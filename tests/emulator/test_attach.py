"""A phone without root: an app that runs already loads the shim as an agent, or is entered by ptrace, and runs on."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import APP, PLANTED, SECONDS, check_clean, run, started

pytestmark = pytest.mark.emulator

FRAME = "demo::new_frame()"


@pytest.fixture(scope="module")
def stock(stock: Machine) -> Machine:
    stock.shell(f"am start -n {APP}/.MainActivity --ei every 2")
    stock.wait_for_process(APP)
    return stock


def check_frames(found: dict[str, Any]) -> None:
    """A report holds what the app leaks, whole."""
    assert (found["target"]["tracer"], found["target"]["arch"]) == ("plt", "arm64")
    assert set(found["totals"]["lost"].values()) <= {0}
    assert found["unwinding"]["partial"] == 0
    sites = [
        site for site in found["sites"] if any(FRAME in str(frame["function"]) for frame in site["frames"])
    ]
    sizes = [site["inuse_space"] // site["inuse_objects"] for site in sites]
    assert sites and set(sizes) == {PLANTED["frame"]["size"]}


def test_a_running_app_without_root_and_without_a_new_start(stock: Machine, tmp_path: Path) -> None:
    """`auto` takes attach-agent. The app leaks every two seconds, so of each stack whole rounds, or rounds cut at our coming."""
    pid = stock.wait_for_process(APP)
    for number in range(2):
        path = tmp_path / f"{number}.json"
        done = run(stock, "--package", APP, "--duration", "7s", "--json", path, "--symbols", stock.symbols)
        assert done.returncode == 0, (path.exists() and json.loads(path.read_text())["notes"], done.stderr)
        assert "measuring by plt: no root" in done.stderr and "ptrace" not in done.stderr
        check_frames(json.loads(path.read_text()))
    assert stock.wait_for_process(APP) == pid
    check_clean(stock, APP)


def test_a_running_app_that_is_killed_meanwhile_leaves_its_report(stock: Machine, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with started(stock, "--package", APP, "--interval", "1s", "--json", path) as process:
        assert process.stdout and process.stdout.readline(), process.communicate()[1]
        stock.root_shell(f"kill -9 $(pidof {APP})")
        _, err = process.communicate(timeout=SECONDS)
    stock.shell(f"am start -n {APP}/.MainActivity --ei every 2")
    assert process.returncode == 0, err
    assert json.loads(path.read_text())["target"]["tracer"] == "plt"
    check_clean(stock, APP)


def test_what_the_system_refuses_at_last_is_done_by_ptrace(stock: Machine, tmp_path: Path) -> None:
    pid, path = stock.wait_for_process(APP), tmp_path / "report.json"
    stock.root_shell("mkdir -p /data/system; touch /data/system/refuses_agents; chmod 711 /data/system")
    try:
        done = run(stock, "--package", APP, "--duration", "7s", "--json", path, "--symbols", stock.symbols)
    finally:
        stock.root_shell("rm /data/system/refuses_agents")
    assert done.returncode == 0, done.stderr
    said = f"{APP} could not load the shim as an agent: Not allowed to attach an agent: {APP}"
    assert f"{said}; attached by ptrace instead" in done.stderr
    check_frames(json.loads(path.read_text()))
    assert stock.wait_for_process(APP) == pid
    assert "TracerPid:\t0" in stock.root_shell(f"cat /proc/{pid}/status")[1]
    check_clean(stock, APP)


@pytest.mark.proof
def test_ptrace_of_an_app_with_a_hanging_main_thread(stock: Machine, tmp_path: Path) -> None:
    """A call that waits for its main thread finds no shim when the thread wakes."""
    pid, path = stock.wait_for_process(APP), tmp_path / "report.json"
    stock.shell(f"am start -n {APP}/.MainActivity --ei hang 35")
    done = run(stock, "--package", APP, "--duration", "30s", "--json", path, "--symbols", stock.symbols)
    stock.shell(f"am start -n {APP}/.MainActivity --ei every 2")
    assert done.returncode == 0, done.stderr
    assert f"{APP} did not load the shim within 10 s; attached by ptrace instead" in done.stderr
    check_frames(json.loads(path.read_text()))
    assert stock.wait_for_process(APP) == pid
    check_clean(stock, APP)
