"""Engines give equal results: this machine's processes, a Dask cluster, workers that are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import children_of
from tests.support.fleet_runs import command, fleet, parts


@dataclass(frozen=True, slots=True)
class Cluster:
    """address: HOST:PORT of the scheduler."""

    address: str
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def dask_cluster(folder: Path) -> Iterator[Cluster]:
    scheduler_file = folder / "scheduler.json"
    options = ["--scheduler-file", scheduler_file, "--no-dashboard"]
    with ExitStack() as stack:
        start = partial(_start, stack, {**os.environ, "DASK_TEMPORARY_DIRECTORY": str(folder)})
        start("scheduler", "--host", "127.0.0.1", "--port", 0, *options)
        work = ["--nthreads", 1, "--no-nanny", "--local-directory", folder, *options]
        workers = [start("worker", *work) for _ in range(2)]
        yield Cluster(_address(scheduler_file), workers)


def _start(stack: ExitStack, environment: dict[str, str], *words: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "dask", *map(str, words)]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait, 30)
    stack.callback(process.kill)
    return process


def _address(scheduler_file: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if scheduler_file.exists() and (text := scheduler_file.read_text()):
            return str(json.loads(text)["address"]).removeprefix("tcp://")
        time.sleep(0.05)
    raise AssertionError("no scheduler in a minute")


pytest.importorskip("distributed", reason="the extra `dask` is not installed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with dask_cluster(tmp_path) as started:
        yield started


def test_dask_and_local_are_the_same_row_by_row(farm: Path, tmp_path: Path, cluster: Cluster) -> None:
    some = f"{farm}/0000*.memleak"
    local = fleet(tmp_path / "local", some)
    dask = fleet(tmp_path / "dask", some, "--engine", f"dask://{cluster.address}")
    assert dask.code == local.code == 0, dask.err
    assert dask.answer == local.answer and local.answer["counted"] == 10
    assert parts(tmp_path / "dask") == parts(tmp_path / "local")


def wait_for_recordings(running: subprocess.Popen[Any], done: Path) -> None:
    """Until ten are in the dataset."""
    while running.poll() is None and (not done.is_dir() or len(os.listdir(done)) < 10):
        time.sleep(0.01)


@pytest.mark.proof
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_worker_that_is_killed_costs_nothing(
    farm: Path, tmp_path: Path, engine: str, cluster: Cluster
) -> None:
    plain = fleet(tmp_path / "plain", farm, "--jobs", 2)
    how = ("--jobs", 2) if engine == "local" else ("--engine", f"dask://{cluster.address}")
    words = command(tmp_path / "killed", farm, *how)
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    wait_for_recordings(running, tmp_path / "killed" / "recordings")
    if engine == "local":
        killed = [pid for pid, words in children_of(running.pid).items() if "spawn_main" in words][:1]
    else:
        killed = [cluster.workers[0].pid]
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
    wait_for_recordings(running, done)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    before = {path: path.stat().st_mtime_ns for path in done.iterdir()}
    assert 10 <= len(before) < 90
    after = fleet(tmp_path / "dataset", farm)
    assert after.code == 0 and after.answer["counted"] == 90
    assert {path: path.stat().st_mtime_ns for path in before} == before
