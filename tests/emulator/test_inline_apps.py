"""Inline hooks in apps of a stock phone, through run-as: exact, and the code is as it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.phone import bionic
from tests.emulator.phone.apps import BIONIC_APP
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import (
    SECONDS,
    check_bionic_leaks,
    check_clean,
    interrupt,
    started,
    wait_until_done,
)

pytestmark = pytest.mark.emulator


def one_more_round(
    machine: Machine, package: str, code: str, folder: Path, *words: str | Path
) -> dict[str, Any]:
    """The report of a session in which the activity of a running app runs once more."""
    machine.shell(f"am force-stop {package}; am start -n {package}/.MainActivity")
    pid = machine.wait_for_process(package)
    wait_until_done(machine, package)
    before, path = machine.code_of(pid, code), folder / "report.json"
    words = ("--package", package, "--tracer", "inline", "--interval", "1s", "--json", path, *words)
    with started(machine, *words) as process:
        assert process.stdout and process.stdout.readline(), process.communicate()[1]
        assert machine.code_of(pid, code) != before  # the hooks are in
        machine.shell(f"am start -n {package}/.MainActivity")
        wait_until_done(machine, package, process)
        interrupt(process)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert machine.code_of(pid, code) == before
    assert machine.wait_for_process(package) == pid
    check_clean(machine, package)
    found: dict[str, Any] = json.loads(path.read_text())
    assert (found["target"]["tracer"], found["measurement"]) == ("inline", "complete")
    assert not any(found["totals"]["lost"].values()) and found["unwinding"]["partial"] == 0
    return found


@pytest.mark.proof
@pytest.mark.skipif(not bionic.is_at_hand(), reason="bionic is not at hand (tests/emulator/README.md)")
def test_an_app_on_bionic_by_the_entries_of_its_libc(stock: Machine, tmp_path: Path) -> None:
    words = ("--symbols", stock.symbols)
    check_bionic_leaks(one_more_round(stock, BIONIC_APP.package, "/libc.so", tmp_path, *words))
