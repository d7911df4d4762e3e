"""The program on the machine: what the app leaks is found by every route, exactly, and nothing of ours stays."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.phone import bionic
from tests.emulator.phone.apps import ARM32, BIONIC_APP, DEMO, abis
from tests.emulator.phone.machine import Machine
from tests.support.program_server import start_program
from tests.support.workloads import TRACERS

pytestmark = pytest.mark.emulator

SECONDS = 120.0
QUIET = 6  # looks, half a second apart
APP, APP_32 = "com.example.leaky", "com.example.leaky32"
LIBRARIES = ("libleaky.so", "libmemleak-demo.so")
PLANTED = {one["name"]: one for one in json.loads((DEMO / "demo.json").read_text())["leaks"]}


def run(machine: Machine, *words: str | Path) -> subprocess.CompletedProcess[str]:
    with started(machine, *words) as process:
        out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextlib.contextmanager
def started(machine: Machine, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The program on this machine; it does not outlive the block."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, **machine.environment}
    with start_program(["--serial", machine.serial, *words], environment, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def report(
    machine: Machine,
    folder: Path,
    package: str,
    *words: str | Path,
    end: Callable[[subprocess.Popen[str]], object] = interrupt,
    code: int = 0,
) -> dict[str, Any]:
    """Of a session that begins with the app and ends, by `end`, once its activity has done its work."""
    how = ("--launch", "--symbols", machine.symbols, "--json", folder / "report.json")
    old = process_times(machine, package).partition(" ")[0]
    with started(machine, "--package", package, *how, *words) as process:
        wait_until_done(machine, package, process, old)
        end(process)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code, err
    return json.loads((folder / "report.json").read_text())


def wait_until_done(
    machine: Machine, package: str, session: subprocess.Popen[str] | None = None, old: str = ""
) -> None:
    """Until another process of the app than `old` has used CPU time, and then none for some seconds."""
    times, deadline = [""] * QUIET, time.monotonic() + SECONDS
    while not times[-1] or len(set(times[-QUIET:])) > 1:
        assert session is None or session.poll() is None, session.communicate()[1]
        assert time.monotonic() < deadline, f"{package} does not come to an end: {times}"
        time.sleep(0.5)
        now = process_times(machine, package)
        times.append("" if now.partition(" ")[0] == old else now)


def process_times(machine: Machine, package: str) -> str:
    """Its process id, user and system time; "" where it does not run."""
    words = f"pid=$(pidof {package}) && [ -f /proc/$pid/stat ] && cut -d' ' -f1,14,15 /proc/$pid/stat"
    return machine.root_shell(words)[1].strip()


def sites_of(planted: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sites whose stack holds the planted functions one above the other."""
    return [site for site in found["sites"] if in_order(planted["functions"], site["frames"])]


def in_order(functions: Sequence[str], frames: Sequence[Mapping[str, Any]]) -> bool:
    names = (frame["function"].partition("(")[0] for frame in frames)
    return all(any(name == function for name in names) for function in functions)


def check_planted(found: Mapping[str, Any], measurement: str = "complete") -> None:
    """Every planted leak with its bytes and blocks, its file and line; no other site of the app's own code.

    But for hand_over: the exchange that its destructor empties at exit, and an app does not exit.
    """
    assert found["unwinding"]["complete"] >= 0.99 * found["unwinding"]["stacks"], found["unwinding"]
    assert found["measurement"] == measurement and found["totals"]["unattributed_objects"] == 0
    known = []
    for name, planted in PLANTED.items():
        sites = sites_of(planted, found)
        held = [sum(site[what] for site in sites) for what in ("inuse_space", "inuse_objects")]
        assert held == [planted["bytes"], planted["objects"]], name
        assert all(any(frame.get("line") for frame in site["frames"]) for site in sites), name
        known += [site["id"] for site in sites]
    others = [site for site in found["sites"] if site["kind"] == "user" and site["id"] not in known]
    unplanned = [
        site
        for site in others
        if Path(site["frames"][1]["module"]).name in LIBRARIES and not in_order(["hand_over"], site["frames"])
    ]
    assert not unplanned


def check_bionic_leaks(found: Mapping[str, Any]) -> None:
    """The leaks of one run of the app on bionic; blocks may be a little larger than requested."""
    for allocator, size, objects, functions in bionic.LEAKS:
        sites = [site for site in found["sites"] if in_order([allocator, *functions], site["frames"])]
        assert sum(site["inuse_objects"] for site in sites) == objects, functions
        assert size <= sum(site["inuse_space"] for site in sites) / objects < size + 1, functions


def check_clean(machine: Machine, package: str) -> None:
    left = f"ls /data/local/tmp /data/app /data/data/{package}; getprop wrap.{package}; pidof memleakd"
    _code, out = machine.root_shell(left)
    assert "memleak" not in out and "LD_PRELOAD" not in out, out


@pytest.mark.parametrize("tracer", TRACERS)
def test_an_app_from_its_first_allocation(machine: Machine, tracer: str, tmp_path: Path) -> None:
    found = report(machine, tmp_path, APP, "--tracer", tracer)
    target = found["target"]
    assert (target["arch"], target["package"], target["serial"]) == ("arm64", APP, machine.serial)
    assert target["tracer"] == tracer
    check_planted(found)
    check_clean(machine, APP)


def test_a_process_that_runs_already(machine: Machine, tmp_path: Path) -> None:
    """Leaks of its activity, started once more; by root, without a new process. Of its service: the next test."""
    once_more = f"am start -n {APP}/.MainActivity"
    machine.shell(once_more)
    pid = machine.wait_for_process(APP)
    wait_until_done(machine, APP)
    words = ("--package", APP, "--interval", "1s", "--symbols", machine.symbols)
    words = (*words, "--json", tmp_path / "report.json")
    with started(machine, *words) as session:
        assert session.stdout and session.stdout.readline(), session.communicate()[1]  # the probes are set
        machine.shell(once_more)
        wait_until_done(machine, APP, session)
        interrupt(session)
        _, err = session.communicate(timeout=SECONDS)
    assert session.returncode == 0, err
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["target"]["tracer"], found["target"]["pid"]) == ("bpf", int(pid))
    check_planted(found)
    check_clean(machine, APP)
    machine.shell(f"am force-stop {APP}")


@pytest.mark.proof
def test_two_sessions_at_once(machine: Machine, tmp_path: Path) -> None:
    """Of two processes with one libc. Up to Linux 6.12 a return runs the programs of all who probe the function: each
    session sees the other's calls come by, and must neither count them nor call its own ones lost.
    """
    once_more = {"": f"am start -n {APP}/.MainActivity", ":remote": f"am startservice -n {APP}/.MainActivity"}
    for process, words in once_more.items():
        machine.shell(words)
        machine.wait_for_process(APP + process)
        wait_until_done(machine, APP + process)
    with contextlib.ExitStack() as stack:
        sessions = {}
        for process in once_more:
            words = ("--package", APP, "--process", APP + process, "--interval", "1s")
            words = (*words, "--symbols", machine.symbols)
            report = tmp_path / f"report{process[1:]}.json"
            sessions[process] = stack.enter_context(started(machine, *words, "--json", report)), report
        for session, _ in sessions.values():
            assert session.stdout and session.stdout.readline(), session.communicate()[1]
        for words in once_more.values():
            machine.shell(words)
        for process in once_more:
            wait_until_done(machine, APP + process)
        for session, _ in sessions.values():
            interrupt(session)
        for process, (session, report) in sessions.items():
            _, err = session.communicate(timeout=SECONDS)
            assert session.returncode == 0, err
            found = json.loads(report.read_text())
            assert (found["target"]["tracer"], found["totals"]["lost"]) == ("bpf", {}), process
            check_planted(found)
    check_clean(machine, APP)
    machine.shell(f"am force-stop {APP}")


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_native_program(machine: Machine, tracer: str, tmp_path: Path) -> None:
    """From its first allocation; what it prints is printed here."""
    words = ("--tracer", tracer, "--json", tmp_path / "report.json", "--", "ls", "/")
    done = run(machine, *words)
    assert done.returncode == 0, done.stderr
    assert "data" in done.stdout.splitlines()
    assert ("measuring by bpf: ls runs as root" in done.stderr) == (tracer == "bpf")
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["target"]["arch"], found["target"]["tracer"]) == ("arm64", tracer)
    assert found["unwinding"]["complete"] == found["unwinding"]["stacks"] > 0
    assert any(frame["module"].endswith("/toybox") for site in found["sites"] for frame in site["frames"])
    check_clean(machine, APP)


def in_own_library(site: Mapping[str, Any]) -> bool:
    return any(frame["module"].endswith("base.apk!/lib/arm64-v8a/libleaky.so") for frame in site["frames"])


@pytest.mark.skipif(not bionic.is_at_hand(), reason="bionic is not at hand (tests/emulator/README.md)")
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_bionic_app_with_its_library_in_the_apk(machine: Machine, tracer: str, tmp_path: Path) -> None:
    # The machine has two zygotes: a process of the app shows which one it comes from.
    machine.shell(f"am start -n {BIONIC_APP.package}/.MainActivity")
    found = report(machine, tmp_path, BIONIC_APP.package, "--tracer", tracer)
    cut = [site for site in found["sites"] if site["end"] != "ROOT"]
    assert not [site for site in cut if in_own_library(site)], cut
    assert len(cut) <= 1, cut  # of its runtime
    assert found["totals"]["unattributed_objects"] == 0
    check_bionic_leaks(found)
    assert any(map(in_own_library, found["sites"]))
    check_clean(machine, BIONIC_APP.package)


@pytest.mark.skipif(ARM32 not in abis(), reason="no compiler for 32-bit arm")
def test_a_32_bit_app_by_the_shim(machine: Machine, tmp_path: Path) -> None:
    found = report(machine, tmp_path, APP_32)
    assert (found["target"]["arch"], found["target"]["tracer"]) == ("arm32", "preload")
    check_planted(found)
    check_clean(machine, APP_32)
