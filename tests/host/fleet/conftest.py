"""Recordings of a farm, made once."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `fleet` is not installed")

from tests.support.builders.fleet_recordings import record_shop, write_farm
from tests.support.fakes.s3_server import s3_server


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of its own: moto's buckets outlive its servers."""
    with s3_server(monkeypatch) as client:
        client.create_bucket(Bucket="farm")
        yield f"s3://farm/{tmp_path.name}"


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 recordings: three versions, two ABIs, three API levels. The workers of one run share them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fleet"
    with open(folder.with_name("fleet.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)  # another worker failed at it
            folder.mkdir()
            write_farm(record_shop(folder), folder / "farm", 90)
            (folder / "whole").touch()
    return folder / "farm"
