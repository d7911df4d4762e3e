"""snoop through the real adb server: the device is this machine, behind an adb daemon of the tests'."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.fakes.adbd import FakeDevice
from tests.support.program_server import start_program
from tests.support.snoop_runs import snooped_program
from tests.support.workloads import need

pytestmark = [pytest.mark.usefixtures("adb_server"), pytest.mark.proof]


@pytest.fixture(autouse=True)
def _bpf() -> None:
    need("bpf")


def test_calls_of_a_process_on_a_device(device: FakeDevice, tmp_path: Path) -> None:
    program = snooped_program("waits.c")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as target:
        words = ["snoop", "-s", device.serial, "--pid", str(target.pid), "-f", "called", "-f", "nothing",
                "--arguments", "str,int->int", "--json", str(tmp_path / "calls.jsonl")]  # fmt: skip
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        with start_program(words, env=environment, stderr=subprocess.PIPE, text=True) as snoop:
            said = [next(iter(snoop.stderr.readline, ""))]
            while "functions probed after" not in said[-1]:
                said.append(snoop.stderr.readline())
                assert said[-1], said
            target.stdin.write(b"x" * 23)
            target.stdin.close()
            assert snoop.wait(60) == 0, said
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert any("nothing: no such function in waits" in line for line in said)
    assert [one["arguments"] for one in lines if one["type"] == "entry"] == [
        ['"text"', str(i)] for i in range(23)
    ]
    assert [one["return"] for one in lines if one["type"] == "exit"] == [str(3 * i) for i in range(23)]
    (counted,) = (one for one in lines if one["type"] == "statistics")
    assert (counted["calls"], counted["returns"], counted["active"]) == (23, 23, 0)
    assert not list((tmp_path / "device").rglob("memleakd")), "nothing of ours stays there"
