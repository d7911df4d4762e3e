"""A Dask cluster on loopback, by Dask's own commands: a scheduler and two workers of one process each."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path


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
