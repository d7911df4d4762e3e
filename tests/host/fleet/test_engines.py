"""Engines give equal results: this machine's processes, a Dask cluster, workers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fakes.dask_cluster import dask_cluster
from tests.support.fleet_runs import command, fleet, parts

pytest.importorskip("distributed", reason="the extra `dask` is not installed")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    with dask_cluster(tmp_path) as cluster:
        yield cluster.address


def test_dask_and_local_are_the_same_row_by_row(farm: Path, tmp_path: Path, scheduler: str) -> None:
    some = f"{farm}/0000*.memleak"
    local = fleet(tmp_path / "local", some)
    dask = fleet(tmp_path / "dask", some, "--engine", f"dask://{scheduler}")
    assert dask.code == local.code == 0, dask.err
    assert dask.answer == local.answer and local.answer["counted"] == 10
    assert parts(tmp_path / "dask") == parts(tmp_path / "local")


@pytest.mark.proof
def test_a_worker_that_is_killed_costs_nothing(farm: Path, tmp_path: Path) -> None:
    plain = fleet(tmp_path / "plain", farm, "--jobs", 2)
    running = subprocess.Popen(
        command(tmp_path / "killed", farm, "--jobs", 2), stdout=subprocess.PIPE, text=True
    )
    done = tmp_path / "killed" / "recordings"
    while running.poll() is None and (not done.is_dir() or len(os.listdir(done)) < 10):
        time.sleep(0.01)
    killed = [pid for pid in _children(running.pid) if "spawn_main" in _words(pid)][:1]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    out, _ = running.communicate(timeout=200)
    assert killed and running.returncode == 0
    assert parts(tmp_path / "killed") == parts(tmp_path / "plain") and out == plain.out


@pytest.mark.proof
def test_an_interrupted_run_goes_on_where_it_was(farm: Path, tmp_path: Path) -> None:
    running = subprocess.Popen(
        command(tmp_path / "dataset", farm, "--jobs", 1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    done = tmp_path / "dataset" / "recordings"
    while running.poll() is None and (not done.is_dir() or len(os.listdir(done)) < 10):
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    before = {path: path.stat().st_mtime_ns for path in done.iterdir()}
    assert 10 <= len(before) < 90
    after = fleet(tmp_path / "dataset", farm)
    assert after.code == 0 and after.answer["counted"] == 90
    assert {path: path.stat().st_mtime_ns for path in before} == before


def _children(pid: int) -> list[int]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(name))
    return found


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
