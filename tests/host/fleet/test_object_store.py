"""Recordings and datasets in S3, served by a real process on loopback; a bucket without rights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fakes.s3_server import s3_server, upload
from tests.support.fleet_runs import fleet


@pytest.fixture
def bucket(farm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """s3://runs with six recordings."""
    with s3_server(monkeypatch) as client:
        client.create_bucket(Bucket="runs")
        upload(client, "runs", sorted(farm.iterdir())[:6], "night")
        yield "s3://runs"


@pytest.mark.proof
def test_the_same_answer(bucket: str, farm: Path, tmp_path: Path) -> None:
    plain = fleet(tmp_path / "local", f"{farm}/0000[0-5].memleak").answer
    stored = fleet(f"{bucket}/dataset", f"{bucket}/night")
    assert stored.code == 0, stored.err
    for name in ("counted", "sites", "changes", "only_on", "versions"):
        assert stored.answer[name] == plain[name]
    again = fleet(f"{bucket}/dataset", f"{bucket}/night")
    assert again.answer == stored.answer


def test_a_bucket_that_is_not_ours(bucket: str, tmp_path: Path) -> None:
    done = fleet(tmp_path / "dataset", f"{bucket}/night", "s3://theirs/runs")
    assert done.code == 6 and done.answer["counted"] == 6
    (refused,) = [row for row in done.answer["recordings"] if row["state"] == "broken"]
    assert refused["source"] == "s3://theirs/runs" and refused["reason"]
