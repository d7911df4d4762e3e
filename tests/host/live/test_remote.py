"""`--live` on a command of a device, which is this machine behind adb: the same view, the same figures as the report's."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.adbd import FakeDevice
from tests.support.gcc import gcc
from tests.support.live_terminal import ALTERNATE_SCREEN, BACK, Terminal

pytestmark = pytest.mark.usefixtures("adb_server")

PROGRAM = (sys.executable, "-P", "-m", "memleak_android.host")
SOURCE = Path(__file__).parents[2] / "support" / "programs" / "steady_leak.c"
LEAKED = 1009


@pytest.fixture
def device(device: FakeDevice) -> FakeDevice:
    """Without root, with a program that leaks."""
    device.add_program("id", "echo 2000")
    gcc("-g", "-O1", "-o", device.folder / "steady_leak", SOURCE)
    return device


@pytest.fixture
def terminal(device: FakeDevice, tmp_path: Path) -> Iterator[Terminal]:
    words = ["-s", device.serial, "-o", str(tmp_path / "out"), "--", str(device.folder / "steady_leak")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    terminal = Terminal([*PROGRAM, "--live", *words], environment, 140, 30, cwd=tmp_path)
    yield terminal
    terminal.close()


def shown(text: str) -> int:
    """Bytes that the table says leak_one holds."""
    found = re.search(r"^\s*([\d,]+)\s+[\d,]+\s.*leak_one", text, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0


def shown_in(report: dict[str, Any]) -> int:
    (leak,) = [site for site in report["sites"] if site["frames"][1]["function"] == "leak_one"]
    return int(leak["inuse_space"])


def test_the_view_of_a_device_agrees_with_the_report(
    device: FakeDevice, terminal: Terminal, tmp_path: Path
) -> None:
    before = shown(terminal.wait_for(lambda text: shown(text) > 0, "the table"))
    assert before % LEAKED == 0
    after = shown(terminal.wait_for(lambda text: shown(text) > before, "a later snapshot"))
    assert device.serial in terminal.text and "preload" in terminal.text
    terminal.press("\r")
    terminal.wait_for(lambda text: "the stack is whole" in text and "steady_leak.c:" in text, "the stack")
    terminal.press("\x1b")
    terminal.wait_for(lambda text: "snapshot at" in text, "the table again")
    terminal.press("q")
    assert terminal.end() == 0
    held = shown_in(json.loads((tmp_path / "out" / "report.json").read_text()))
    assert held >= after and held % LEAKED == 0
    assert b"round 0" in (tmp_path / "out" / "output.txt").read_bytes()
    assert terminal.raw.count(ALTERNATE_SCREEN) == terminal.raw.count(BACK) == 1
    assert terminal.modes == terminal.modes_before
    assert os.listdir(device.temporary) == []


def test_a_cable_that_is_pulled_puts_the_terminal_back_and_reports_what_came(
    device: FakeDevice, terminal: Terminal, tmp_path: Path
) -> None:
    terminal.wait_for(lambda text: shown(text) > 0, "the table")
    device.cut()
    assert terminal.end() == 6
    assert terminal.raw.count(ALTERNATE_SCREEN) == terminal.raw.count(BACK) == 1
    assert terminal.modes == terminal.modes_before
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verdict"] == "incomplete" and "was cut" in " ".join(report["notes"])
    assert shown_in(report) % LEAKED == 0 < shown_in(report)
