"""Inline hooks in apps of a stock phone, through run-as: exact, and the code is as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import bionic
from tests.emulator.apps import BIONIC_APP, OWN_APP, OWN_LEAKS
from tests.emulator.boot import booted
from tests.emulator.machine import Machine, Options
from tests.emulator.test_sessions import (
    SECONDS,
    check_clean,
    in_order,
    interrupt,
    run,
    started,
    wait_until_done,
)

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def stock() -> Iterator[Machine]:
    with booted(Options(build="user")) as machine:
        yield machine


def code_of(machine: Machine, pid: str, path: str) -> str:
    """A digest of the code in memory that comes from a file."""
    lines = machine.root_shell(f"cat /proc/{pid}/maps")[1].splitlines()
    line = next(one for one in lines if " r-xp " in one and one.endswith(path))
    low, high = (int(word, 16) for word in line.split()[0].split("-"))
    words = f"dd if=/proc/{pid}/mem bs=4096 skip={low // 4096} count={(high - low) // 4096} 2>/dev/null | sha256sum"
    return machine.root_shell(words)[1].split()[0]


def one_more_round(
    machine: Machine, package: str, code: str, folder: Path, *words: str | Path
) -> dict[str, Any]:
    """The report of a session in which the activity of a running app runs once more."""
    machine.shell(f"am force-stop {package}; am start -n {package}/.MainActivity")
    pid = machine.wait_for_process(package)
    wait_until_done(machine, package)
    before, path = code_of(machine, pid, code), folder / "report.json"
    words = ("--package", package, "--tracer", "inline", "--interval", "1s", "--json", path, *words)
    with started(machine, *words) as process:
        assert process.stdout and process.stdout.readline(), process.communicate()[1]
        assert code_of(machine, pid, code) != before  # the hooks are in
        machine.shell(f"am start -n {package}/.MainActivity")
        wait_until_done(machine, package, process)
        interrupt(process)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert code_of(machine, pid, code) == before
    assert machine.wait_for_process(package) == pid
    check_clean(machine, package)
    found: dict[str, Any] = json.loads(path.read_text())
    assert (found["target"]["tracer"], found["verdict"]) == ("inline", "ok")
    assert not any(found["totals"]["lost"].values()) and found["unwinding"]["partial"] == 0
    return found


@pytest.mark.proof
def test_a_glibc_app_with_an_allocator_hidden_in_its_library(stock: Machine, tmp_path: Path) -> None:
    found = one_more_round(stock, OWN_APP.package, "libleaky.so", tmp_path, "--object", "libleaky.so")
    for function, size, objects in OWN_LEAKS:
        sites = [site for site in found["sites"] if in_order(["malloc", function], site["frames"])]
        held = [sum(site[what] for site in sites) for what in ("inuse_space", "inuse_objects")]
        assert held == [size * objects, objects], function
    assert found["totals"]["inuse_objects"] == sum(objects for _, _, objects in OWN_LEAKS)


@pytest.mark.proof
def test_slots_see_nothing_of_it_and_that_is_said(stock: Machine, tmp_path: Path) -> None:
    stock.shell(f"am start -n {OWN_APP.package}/.MainActivity --ei every 2")
    stock.wait_for_process(OWN_APP.package)
    words = ("--tracer", "plt", "--duration", "6s", "--json", tmp_path / "report.json")
    done = run(stock, "--package", OWN_APP.package, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "report.json").read_text())
    assert not any(
        in_order([function], site["frames"]) for function, _, _ in OWN_LEAKS for site in found["sites"]
    )
    assert any("linked into its caller" in note for note in found["notes"]), found["notes"]
    stock.shell(f"am force-stop {OWN_APP.package}")


@pytest.mark.proof
@pytest.mark.skipif(not bionic.is_at_hand(), reason="bionic is not at hand (tests/emulator/README.md)")
def test_an_app_on_bionic_by_the_entries_of_its_libc(stock: Machine, tmp_path: Path) -> None:
    symbols = bionic.library(stripped=False).parent
    found = one_more_round(stock, BIONIC_APP.package, "/libc.so", tmp_path, "--symbols", symbols)
    for allocator, size, objects, functions in bionic.LEAKS:
        sites = [site for site in found["sites"] if in_order([allocator, *functions], site["frames"])]
        assert sum(site["inuse_objects"] for site in sites) == objects, functions
        assert size <= sum(site["inuse_space"] for site in sites) / objects < size + 1, functions
