"""The main job over adb with real BPF: the device is this machine's kernel behind the real adb server."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import attached, interrupt, result, until_unchanged
from tests.support.fakes.adb_server import connected, own_adb_server
from tests.support.fakes.adbd import FakeDevice
from tests.support.workloads import build, functions, need

pytestmark = [pytest.mark.proof, pytest.mark.bpf]

LEAKS = 7


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("leaks_when_told", tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDevice]:
    need("bpf")
    device = FakeDevice(tmp_path_factory.mktemp("device"))
    with own_adb_server(), connected(device):
        yield device


@contextmanager
def target(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def leak(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"x" * LEAKS)
    process.stdin.flush()
    time.sleep(0.3)


def session(program: Path, folder: Path, *where: str) -> dict[str, Any]:
    """The report on one process of the program that leaks while it is measured."""
    folder.mkdir()
    with target(program) as process, attached(process.pid, folder / "report.json", *where) as tool:
        leak(process)
        interrupt(tool)
        return result(tool, folder / "report.json")


def amounts(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Each site by its functions, files and lines, addresses aside."""
    return [
        (
            site["inuse_space"],
            site["inuse_objects"],
            site["alloc_space"],
            site["kind"],
            site["end"],
            [(frame["function"], frame.get("file"), frame.get("line")) for frame in site["frames"]],
        )
        for site in report["sites"]
    ]


def test_the_report_is_that_of_a_local_session(fake: FakeDevice, program: Path, tmp_path: Path) -> None:
    there = session(program, tmp_path / "there", "--serial", fake.serial)
    here = session(program, tmp_path / "here")
    assert there["totals"]["inuse_space"] == LEAKS * 1013
    assert amounts(there) == amounts(here)
    assert functions(there["sites"][0])[1:5] == ["inner", "middle", "outer", "main"]
    assert there["unwinding"]["complete"] == there["unwinding"]["stacks"]
    assert (there["target"]["serial"], here["target"].get("serial")) == (fake.serial, None)
    assert not list(fake.temporary.iterdir())


def is_left(fake: FakeDevice) -> bool:
    deadline = time.monotonic() + 20
    while list(fake.temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(list(fake.temporary.iterdir()))


def test_the_death_of_this_program_takes_the_probes_away(
    fake: FakeDevice, program: Path, tmp_path: Path
) -> None:
    with target(program) as process:
        with attached(process.pid, tmp_path / "report.json", "--serial", fake.serial) as tool:
            tool.send_signal(signal.SIGKILL)
            tool.wait()
        assert not until_unchanged(process.pid)
        assert process.poll() is None
    assert not is_left(fake)


def test_a_pulled_cable_takes_the_probes_away_and_the_result_stays(
    fake: FakeDevice, program: Path, tmp_path: Path
) -> None:
    """Last: the device is gone afterwards."""
    report = tmp_path / "report.json"
    with target(program) as process:
        with attached(process.pid, report, "--serial", fake.serial) as tool:
            leak(process)
            assert tool.stdout is not None
            assert any(f"{LEAKS * 1013} bytes" in line for line in iter(tool.stdout.readline, ""))
            fake.cut()
            _, err = tool.communicate(timeout=60)
        assert tool.returncode == 6, err
        assert f"{LEAKS * 1013}" in report.read_text()
        assert f"the connection to device {fake.serial} was cut" in report.read_text()
        assert not until_unchanged(process.pid)
    assert not is_left(fake)
