"""BPF needs tens of descriptors, and a hundred where each probe has one: the agent allows itself what it may, and says what is missing where it may not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workloads import need

pytestmark = pytest.mark.bpf

PROGRAM = f"exec {sys.executable} -m memleak_android.host -q --tracer bpf"
ASKED = "-- sh -c 'ulimit -Sn >limit'"


def run(limit: str, folder: Path, *before: str, option: str = "") -> subprocess.CompletedProcess[str]:
    need("bpf")
    argv = [*before, "sh", "-c", f"ulimit {limit} && {PROGRAM} {option} {ASKED}"]
    return subprocess.run(argv, cwd=folder, text=True, capture_output=True, check=False)


def test_a_soft_limit_is_that_of_the_command_alone(tmp_path: Path) -> None:
    done = run("-Sn 64", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "limit").read_text() == "64\n"


@pytest.mark.parametrize(("allowed", "option"), [(64, "--without-multi"), (40, "")])
def test_a_hard_limit_is_named(tmp_path: Path, allowed: int, option: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives up the right to raise its limits")
    less_right = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]
    done = run(f"-n {allowed}", tmp_path, *less_right, option=option)
    assert done.returncode == 5
    last = done.stderr.splitlines()[-1]
    assert last.startswith("memleak-android: error: could not ")
    assert last.endswith("; allow more open files: ulimit -n")
