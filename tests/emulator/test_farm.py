"""Three devices at once, two machines and a daemon whose cable is pulled: two reports, one clear error, one answer."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.phone.boot import start
from tests.emulator.phone.leftovers import check_nothing_left, traces
from tests.emulator.phone.machine import Machine, Options, adb_program
from tests.emulator.test_sessions import APP, SECONDS, check_planted, wait_until_done
from tests.support.fakes.adbd import FakeDevice, Faults
from tests.support.fleet_runs import fleet
from tests.support.workloads import PROGRAM

pytestmark = [pytest.mark.emulator, pytest.mark.proof, pytest.mark.timeout(1200)]


@pytest.fixture
def second() -> Iterator[Machine]:
    """Another phone, of another API level."""
    started = start(Options(api_level=30))
    yield started
    started.stop()


@pytest.fixture
def serials(machine: Machine, second: Machine, tmp_path: Path) -> Iterator[list[str]]:
    """Serials of the three on the first machine's adb server; the last is the daemon."""
    server = [adb_program(), "-P", str(machine.server_port)]
    with FakeDevice(tmp_path / "device", Faults(cut_after_bytes=64)) as device:
        more = [f"127.0.0.1:{second.number + 1}", device.serial]
        for serial in more:
            subprocess.run([*server, "connect", serial], check=True, capture_output=True, timeout=SECONDS)
        yield [machine.serial, *more]
        subprocess.run([*server, "disconnect"], check=True, capture_output=True, timeout=SECONDS)


def test_two_reports_and_one_error(
    machine: Machine, second: Machine, serials: list[str], tmp_path: Path
) -> None:
    machines, before = (machine, second), [traces(one) for one in (machine, second)]
    farm = tmp_path / "farm"
    devices = [word for serial in serials for word in ("--serial", serial)]
    symbols = ("--symbols", machine.symbols)
    words = ["record", *devices, "--package", APP, "--launch", *symbols, "-o", farm]
    environment = {name: value for name, value in os.environ.items() if name != "ANDROID_SERIAL"}
    with subprocess.Popen(
        [*PROGRAM, *map(str, words)],
        env={**environment, "ANDROID_ADB_SERVER_PORT": str(machine.server_port)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as session:
        for one in machines:
            wait_until_done(one, APP, session)
        os.killpg(session.pid, signal.SIGINT)  # as a terminal does
        _, err = session.communicate(timeout=SECONDS)
    assert session.returncode == 6, err  # not all are there
    names = {f"{re.sub('[^a-z0-9.-]', '_', serial)}.memleak" for serial in serials[:2]}
    assert {path.name for path in farm.iterdir()} == names
    (error,) = {line for line in err.splitlines() if "error:" in line}
    assert serials[2] in error and "2 of 3 devices measured" in err.splitlines()[-1], err
    for name in names:
        shown = subprocess.run(
            [*PROGRAM, "report", "--format", "json", *map(str, symbols), farm / name],
            capture_output=True,
            check=True,
            timeout=SECONDS,
        )
        check_planted(json.loads(shown.stdout))
    answer = fleet(tmp_path / "dataset", farm, *symbols).answer
    assert answer["counted"] == 2 and {row["api_level"] for row in answer["recordings"]} == {29, 30}
    assert {row["abi"] for row in answer["recordings"]} == {"arm64-v8a"}
    assert all(site["recordings"] == 2 for site in answer["sites"] if "planted" in str(site["frames"]))
    for one, seen in zip(machines, before, strict=True):
        check_nothing_left(one, seen)
