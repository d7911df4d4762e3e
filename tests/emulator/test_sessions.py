"""The program on the machine: what the app leaks is found by every route, exactly, and nothing of ours stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import bionic
from tests.emulator.apps import ARM32, ARM64, BIONIC_APP, DEMO, abis, libraries
from tests.emulator.machine import Machine
from tests.support.workloads import PROGRAM

pytestmark = pytest.mark.emulator

SECONDS = 120.0
QUIET = 6  # looks, half a second apart
APP, APP_32 = "com.example.leaky", "com.example.leaky32"
PLANTED = {one["name"]: one for one in json.loads((DEMO / "demo.json").read_text())["leaks"]}


def run(machine: Machine, *words: str | Path) -> subprocess.CompletedProcess[str]:
    with started(machine, *words) as process:
        out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def started(machine: Machine, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, "--serial", machine.serial, *map(str, words)],
        env={**os.environ, **machine.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(
    machine: Machine, folder: Path, unstripped: Iterable[Path], package: str, *words: str | Path
) -> dict[str, Any]:
    """Of a session that begins with the app and ends, by Ctrl-C, once its activity has done its work."""
    symbols = [word for path in unstripped for word in ("--symbols", path.parent)]
    words = ("--package", package, "--launch", "--json", folder / "report.json", *symbols, *words)
    old = process_times(machine, package).partition(" ")[0]
    with started(machine, *words) as process:
        wait_until_done(machine, package, process, old)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def wait_until_done(machine: Machine, package: str, process: subprocess.Popen[str], old: str) -> None:
    """Until another process of the app than `old` has used CPU time, and then none for some seconds."""
    times, deadline = [""] * QUIET, time.monotonic() + SECONDS
    while not times[-1] or len(set(times[-QUIET:])) > 1:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{package} does not come to an end: {times}"
        time.sleep(0.5)
        now = process_times(machine, package)
        times.append("" if now.partition(" ")[0] == old else now)


def process_times(machine: Machine, package: str) -> str:
    """Its process id, user and system time; "" where it does not run."""
    stat = f"/proc/$(pidof {package})/stat"
    return machine.root_shell(f"[ -f {stat} ] && cut -d' ' -f1,14,15 {stat}")[1].strip()


def sites_of(planted: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sites whose stack holds the planted functions one above the other."""
    return [site for site in found["sites"] if in_order(planted["functions"], site["frames"])]


def in_order(functions: Sequence[str], frames: Sequence[Mapping[str, Any]]) -> bool:
    names = (frame["function"].partition("(")[0] for frame in frames)
    return all(any(name == function for name in names) for function in functions)


def check_planted(found: Mapping[str, Any]) -> None:
    """Every planted leak with its bytes and blocks, its file and line; no other site of the app's own code.

    But for hand_over: the exchange that its destructor empties at exit, and an app does not exit.
    """
    assert found["unwinding"]["complete"] >= 0.99 * found["unwinding"]["stacks"], found["unwinding"]
    assert found["verdict"] == "ok" and found["totals"]["unattributed_objects"] == 0
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
        if is_of_app(site["frames"][1]) and not in_order(["hand_over"], site["frames"])
    ]
    assert not unplanned


def is_of_app(frame: Mapping[str, Any]) -> bool:
    return any(name in frame["module"] for name in ("libleaky", "libmemleak-demo"))


def check_clean(machine: Machine, package: str) -> None:
    left = f"ls /data/local/tmp /data/data/{package}; getprop wrap.{package}; pidof memleakd"
    _code, out = machine.root_shell(left)
    assert "memleak" not in out and "ml-" not in out and "LD_PRELOAD" not in out, out


@pytest.mark.parametrize("tracer", ["bpf", "preload"])
def test_an_app_from_its_first_allocation(machine: Machine, tracer: str, tmp_path: Path) -> None:
    found = report(machine, tmp_path, libraries(ARM64, stripped=False).values(), APP, "--tracer", tracer)
    assert (found["target"]["arch"], found["target"]["tracer"], found["target"]["package"]) == (
        "arm64",
        tracer,
        APP,
    )
    assert found["target"]["serial"] == machine.serial
    check_planted(found)
    check_clean(machine, APP)


@pytest.mark.skipif(not bionic.is_at_hand(), reason="bionic is not at hand (tests/emulator/README.md)")
@pytest.mark.parametrize("tracer", ["bpf", "preload"])
def test_an_app_on_bionic_whose_library_lies_in_its_apk(
    machine: Machine, tracer: str, tmp_path: Path
) -> None:
    # The machine has two zygotes: a process of the app shows which one it comes from.
    machine.shell(f"am start -n {BIONIC_APP.package}/.MainActivity")
    unstripped = [bionic.library(stripped=False)]
    found = report(machine, tmp_path, unstripped, BIONIC_APP.package, "--tracer", tracer)
    assert found["unwinding"]["partial"] == 0 and found["totals"]["unattributed_objects"] == 0
    for allocator, size, objects, functions in bionic.LEAKS:
        sites = [site for site in found["sites"] if in_order([allocator, *functions], site["frames"])]
        assert sum(site["inuse_objects"] for site in sites) == objects, functions
        assert size <= sum(site["inuse_space"] for site in sites) / objects < size + 1, functions
    modules = {frame["module"] for site in found["sites"] for frame in site["frames"]}
    assert any(name.endswith("base.apk!/lib/arm64-v8a/libleaky.so") for name in modules), modules
    check_clean(machine, BIONIC_APP.package)


@pytest.mark.skipif(ARM32 not in abis(), reason="no compiler for 32-bit arm")
def test_a_32_bit_app_by_the_shim(machine: Machine, tmp_path: Path) -> None:
    found = report(machine, tmp_path, libraries(ARM32, stripped=False).values(), APP_32)
    assert (found["target"]["arch"], found["target"]["tracer"]) == ("arm32", "preload")
    check_planted(found)
    check_clean(machine, APP_32)


@pytest.mark.skipif(ARM32 not in abis(), reason="no compiler for 32-bit arm")
def test_a_32_bit_process_is_refused_before_a_probe_is_placed(machine: Machine) -> None:
    machine.shell(f"am start -n {APP_32}/.MainActivity")
    done = run(machine, "--package", APP_32, "--tracer", "bpf")
    machine.shell(f"am force-stop {APP_32}")
    assert (done.returncode, done.stdout) == (5, "")
    assert "32-bit code, where the kernel places no uprobes" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("--package", "com.example.gone"), 4, "com.example.gone is not installed on device"),
        (("--package", APP), 4, f"{APP} is not running; start it, or use --launch or --wait"),
        (("--pid", "4194303"), 4, "there is no process 4194303 on device"),
    ],
)
def test_failures_end_in_one_line(machine: Machine, words: Sequence[str], code: int, line: str) -> None:
    machine.shell(f"am force-stop {APP}")
    done = run(machine, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert line in done.stderr and done.stderr.count("\n") == 1
    check_clean(machine, APP)
