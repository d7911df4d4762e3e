"""snoop on the machine: an app's functions, counted against how often its activity was started."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.emulator.phone.machine import Machine
from tests.support.program_server import start_program

pytestmark = pytest.mark.emulator

APP, RUNS = "com.example.leaky", 3
SECONDS = 120.0


def test_an_apps_functions_are_counted_with_their_stacks(machine: Machine, tmp_path: Path) -> None:
    start = f"am start -n {APP}/.MainActivity"
    machine.shell(start)
    time.sleep(2)  # its first run
    events = tmp_path / "calls.jsonl"
    words = ["snoop", "-s", machine.serial, "--package", APP, "-f", "libleaky.so:demo::run_all",
            "--stacks", "--json", events]  # fmt: skip
    environment = {**os.environ, **machine.environment}
    with start_program(words, environment, stderr=subprocess.PIPE, text=True) as snoop:
        assert "1 of 1 functions probed" in (said := snoop.stderr.readline()), said
        for _ in range(RUNS):
            machine.shell(start)
            time.sleep(2)
        snoop.send_signal(signal.SIGINT)
        assert snoop.wait(SECONDS) == 0
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    (counted,) = (one for one in lines if one["type"] == "statistics")
    assert (counted["function"], counted["calls"]) == ("demo::run_all(double)", RUNS)
    assert (counted["returns"], counted["unpaired"], counted["active"]) == (RUNS, 0, 0)
    stacks = [one["stack"] for one in lines if one["type"] == "entry"]
    assert len(stacks) == RUNS
    assert all(stack[0].startswith("demo::run_all") and stack[-1].startswith("_start") for stack in stacks)
