"""A thousand recordings: exactly what was planted, by this machine and by a Dask cluster that loses a worker in the middle."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="the extra `dask` is not installed")

from tests.support.builders.fleet_recordings import record_shop, write_farm
from tests.support.fakes.dask_cluster import dask_cluster
from tests.support.fleet_runs import FleetRun, command, fleet, parts

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1200)]

COUNT = 1000
PLANTED = {("open_session", "grown"), ("parse_coupon", "gone"), ("show_banner", "new")}
OWN = ("fill_cache", "open_session", "show_banner", "parse_coupon", "align_for_arm")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    write_farm(record_shop(folder), folder / "farm", COUNT)
    return folder / "farm"


@pytest.fixture(scope="module")
def local(farm: Path) -> FleetRun:
    return fleet(farm.parent / "local", farm, "--jobs", 2)


def function(one: dict[str, list[dict[str, str]]]) -> str:
    return next(frame["function"] for frame in one["frames"] if frame["function"] in OWN)


def test_exactly_the_planted_ones(local: FleetRun) -> None:
    answer = local.answer
    assert local.code == 0 and answer["counted"] == COUNT
    assert {(function(one), one["change"]) for one in answer["changes"]} == PLANTED
    assert [(function(one), one["value"]) for one in answer["only_on"]] == [("align_for_arm", "arm64-v8a")]


def test_a_cluster_that_loses_a_worker(farm: Path, local: FleetRun, tmp_path: Path) -> None:
    with dask_cluster(tmp_path) as cluster:
        words = command(tmp_path / "dask", farm, "--engine", f"dask://{cluster.address}")
        running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        done = tmp_path / "dask" / "recordings"
        while running.poll() is None and (not done.is_dir() or len(os.listdir(done)) < COUNT // 4):
            time.sleep(0.02)
        cluster.workers[0].kill()
        out, _ = running.communicate(timeout=900)
    assert running.returncode == 0 and out == local.out
    assert parts(tmp_path / "dask") == parts(farm.parent / "local")
