"""--cache: unwind tables and symbols are made once for all workers and machines, and change no answer."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders.fleet_recordings import record_abandoned, write_copies
from tests.support.fakes.s3_server import s3_server, upload
from tests.support.fleet_runs import FleetRun, command, fleet, parts

COUNT = 6
INCOMPLETE = 6  # their sessions were killed


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings whose stacks are still to be unwound."""
    folder = tmp_path_factory.mktemp("abandoned")
    write_copies(record_abandoned(folder), folder / "shelf", COUNT)
    return folder / "shelf"


def uses(run: FleetRun) -> dict[str, tuple[int, int, int]]:
    assert run.code == INCOMPLETE, run.err
    return {row["kind"]: (row["built"], row["reused"], row["fetched"]) for row in run.answer["cache"]}


def as_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """With a cache of its own and nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def test_workers_of_one_machine_build_once(shelf: Path, tmp_path: Path) -> None:
    plain = fleet(tmp_path / "plain", shelf)
    shared = fleet(tmp_path / "shared", shelf, "--jobs", 4, "--cache", tmp_path / "cache")
    built, reused, fetched = uses(shared)["unwind tables"]
    assert built == len(list((tmp_path / "cache").rglob("*.rows"))) > 0
    assert built + reused == COUNT * built and not fetched
    lines = uses(shared)["line tables"]
    assert lines[0] == len(list((tmp_path / "cache").glob("*.symcache"))) > 0
    assert parts(tmp_path / "shared") == parts(tmp_path / "plain") and not plain.answer["cache"]
    again = fleet(tmp_path / "again", shelf, "--cache", tmp_path / "cache")
    assert uses(again)["unwind tables"] == (0, COUNT * built, 0)


@pytest.mark.proof
def test_another_machine_fetches_what_the_first_has_built(
    shelf: Path, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_machine(monkeypatch, tmp_path / "first")
    first = uses(fleet(tmp_path / "a", shelf, "--cache", store))
    as_machine(monkeypatch, tmp_path / "second")
    second = uses(fleet(tmp_path / "b", shelf, "--cache", store))
    for kind in ("unwind tables", "line tables"):
        built, _, fetched = first[kind]
        assert built > 0 and not fetched
        assert second[kind] == (0, COUNT * built, built)
    assert parts(tmp_path / "a") == parts(tmp_path / "b")


@pytest.mark.proof
def test_machines_that_begin_at_once(
    shelf: Path, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = []
    for name in ("first", "second"):
        as_machine(monkeypatch, tmp_path / name)
        words = command(tmp_path / f"{name}-rows", shelf, "--jobs", 1, "--cache", store)
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for one in running:
        _, err = one.communicate(timeout=200)
        assert one.returncode == INCOMPLETE, err
    assert parts(tmp_path / "first-rows") == parts(tmp_path / "second-rows")
    as_machine(monkeypatch, tmp_path / "third")  # what they left is whole
    assert all(not built for built, *_ in uses(fleet(tmp_path / "c", shelf, "--cache", store)).values())


def test_a_cache_that_cannot_be_written(shelf: Path, tmp_path: Path, store: str) -> None:
    for url in ("/proc/none", "s3://theirs/cache"):
        run = fleet(tmp_path / "dataset", shelf, "--cache", url)
        assert run.code == 2 and f"could not open a cache at {url}: " in run.err and "--cache" in run.err


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
