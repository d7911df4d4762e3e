"""Attaching to an app under yama and SELinux, on the machine, as the app."""

import subprocess
from pathlib import Path

import pytest

from tests.emulator.phone.apps import OWN_APP, OWN_LEAKS
from tests.emulator.phone.leftovers import check_nothing_left, traces
from tests.emulator.phone.machine import Machine
from tests.emulator.test_inline_apps import one_more_round
from tests.emulator.test_sessions import in_order, run

pytestmark = pytest.mark.emulator

APP = OWN_APP.package
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
WORDS = ("--package", APP, "--tracer", "inline", "--object", "libleaky.so", "--duration", "20s")


@pytest.fixture(scope="module")
def stock(stock: Machine) -> Machine:
    stock.shell(f"am start -n {APP}/.MainActivity")
    stock.wait_for_process(APP)
    return stock


def refused(machine: Machine) -> str:
    """The one line; the app runs on untraced, its code is as it was, and nothing of ours is left."""
    pid, before = machine.wait_for_process(APP), traces(machine)
    code = maps_and_code(machine, pid)
    done = run(machine, *WORDS)
    assert done.returncode == 4 and done.stdout == "", done.stderr
    assert machine.wait_for_process(APP) == pid
    assert "TracerPid:\t0" in machine.root_shell(f"cat /proc/{pid}/status")[1]
    assert maps_and_code(machine, pid) == code
    check_nothing_left(machine, before)
    return error_of(done).replace(pid, "PID")


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("memleak-android: error: ")]
    return line.removeprefix("memleak-android: error: ")


def maps_and_code(machine: Machine, pid: str) -> tuple[str, str]:
    maps = machine.root_shell(f"grep -v ' rw' /proc/{pid}/maps")[1]
    return maps, machine.code_of(pid, "libleaky.so")


@pytest.mark.parametrize("scope", [1, 2])
def test_yama(stock: Machine, scope: int) -> None:
    if stock.root_shell(f"echo {scope} > {YAMA}")[0]:
        pytest.skip("the machine's kernel has no yama")
    try:
        said = refused(stock)
    finally:
        stock.root_shell(f"echo 0 > {YAMA}")
    way_out = "sysctl kernel.yama.ptrace_scope=0, or run as root"
    assert said == f"kernel.yama.ptrace_scope is {scope}, which forbids attaching to process PID; {way_out}"


def test_selinux(stock: Machine) -> None:
    with stock.refusing("ptrace"):
        said = refused(stock)
    assert said == "the kernel does not allow tracing process PID: SELinux, by its domain; run as root"


@pytest.mark.proof
def test_memory_that_may_not_be_made_executable(stock: Machine, tmp_path: Path) -> None:
    """execmem and execmod denied: the moved code has room in the shim's own text, and ptrace writes it."""
    with stock.refusing("execmem"):
        found = one_more_round(stock, APP, "libleaky.so", tmp_path, "--object", "libleaky.so")
    for function, size, objects in OWN_LEAKS:
        sites = [site for site in found["sites"] if in_order(["malloc", function], site["frames"])]
        held = [sum(site[what] for site in sites) for what in ("inuse_space", "inuse_objects")]
        assert held == [size * objects, objects], function
    assert found["totals"]["inuse_objects"] == sum(objects for _, _, objects in OWN_LEAKS)
