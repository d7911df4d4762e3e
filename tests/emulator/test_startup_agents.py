"""A stock phone of API level 30: a debuggable app without a wrap.sh is measured from its start, and nothing stays in it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.phone.boot import booted
from tests.emulator.phone.leftovers import check_nothing_left, traces
from tests.emulator.phone.machine import Machine, Options
from tests.emulator.test_sessions import APP, check_clean, check_planted, interrupt, report, run, started
from tests.support.attaching import until

pytestmark = pytest.mark.emulator

ENDS = {"this program is killed": -9, "the app is killed": 0, "the cable is pulled": 6}  # and the exit code
FOLDER = f"/data/data/{APP}/code_cache"


@pytest.fixture(scope="module")
def stock() -> Iterator[Machine]:
    with booted(Options(build="user", api_level=30)) as machine:
        yield machine


def code_cache(machine: Machine) -> list[str]:
    return machine.root_shell(f"cd {FOLDER} && find . | sort")[1].split()


def test_an_app_from_its_first_code_on(stock: Machine, tmp_path: Path) -> None:
    """Each planted leak exactly, by `auto`, and the app runs on unchanged."""
    before = code_cache(stock)
    found = report(stock, tmp_path, APP)
    assert (found["target"]["arch"], found["target"]["tracer"]) == ("arm64", "plt")
    check_planted(found)
    assert stock.shell(f"pidof {APP}")[1].strip()
    assert code_cache(stock) == before
    check_clean(stock, APP)


def test_it_says_why(stock: Machine) -> None:
    done = run(stock, "--package", APP, "--launch", "--duration", "4s")
    assert done.returncode == 0, done.stderr
    reason = "measuring by plt: no root; no root to set the wrap property; the app carries no wrap.sh"
    assert reason in done.stderr
    shown = run(stock, "doctor", "--package", APP, "--launch").stdout
    assert "by startup             open (add --launch: a process loads it when it starts)" in shown
    assert "route                  startup" in shown


@pytest.mark.parametrize("end", ENDS)
def test_the_agent_is_gone_however_it_ends(stock: Machine, end: str, tmp_path: Path) -> None:
    stock.shell(f"am force-stop {APP}")
    before, cache = traces(stock), code_cache(stock)
    words = ("--package", APP, "--launch", "--interval", "1s", "--json", tmp_path / "report.json")
    with started(stock, *words) as process:
        assert process.stdout and process.stdout.readline(), process.communicate()[1]
        assert "./startup_agents" in code_cache(stock)
        if end == "this program is killed":
            process.send_signal(signal.SIGKILL)
        elif end == "the app is killed":
            stock.shell(f"am force-stop {APP}")
        else:
            stock.unplug()
        _, err = process.communicate(timeout=120)
    if end == "the cable is pulled":
        stock.plug_in()
    assert process.returncode == ENDS[end], err
    stock.shell(f"am force-stop {APP}")
    check_nothing_left(stock, before)
    assert until(lambda: code_cache(stock) == cache, 10)


@pytest.mark.proof
def test_what_a_device_that_lost_its_power_kept_does_no_harm_and_goes(stock: Machine, tmp_path: Path) -> None:
    """The file of a keeper that is no more: the app starts with it as ever, and the next session takes it away."""
    words = ("--package", APP, "--launch", "--interval", "1s")
    with started(stock, *words) as process:
        assert process.stdout and process.stdout.readline(), process.communicate()[1]
        name = stock.root_shell(f"ls {FOLDER}/startup_agents")[1].strip()
        stock.root_shell(f"cp -p {FOLDER}/startup_agents/{name} {FOLDER}/kept.so")
        interrupt(process)
        process.communicate(timeout=120)
    agents = f"{FOLDER}/startup_agents"
    stock.root_shell(
        f"su.off 10123 sh -c 'mkdir {agents} && cp {FOLDER}/kept.so {agents}/{name}'; rm {FOLDER}/kept.so"
    )
    assert f"./startup_agents/{name}" in code_cache(stock)
    stock.shell(f"am force-stop {APP}; am start -n {APP}/.MainActivity")
    pid = stock.wait_for_process(APP)
    stock.wait_for_mapping(pid, name)
    stock.wait_for_mapping(pid, "libleaky.so")
    done = run(stock, "--package", APP, "--launch", "--duration", "12s", "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["target"]["tracer"] == "plt"
    assert code_cache(stock) == ["."]
