"""Results over many recordings: exactly what was planted, and nothing else."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.cli import run
from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.fleet_report import make_fleet_profile
from memleak_android.host.fleet.run import Worked
from memleak_android.host.profile.fleet_profile import FleetProfile
from memleak_android.host.recording.read import read_profile
from memleak_android.host.reports.json.fleet import FLEET, json_schema
from tests.support.builders.fleet_recordings import without_a_stack
from tests.support.goldens import assert_golden

OWN = ("fill_cache", "open_session", "show_banner", "parse_coupon", "align_for_arm")


@pytest.fixture(scope="module")
def answer(farm: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("answer")
    paths = ["--dataset", folder / "dataset", "-o", folder / "fleet.json"]
    words = ["fleet", "report", farm, *paths, "--format", "json", "-q"]
    assert run(list(map(str, words))) == 0
    return msgspec.json.decode((folder / "fleet.json").read_bytes(), type=FLEET.form(FleetProfile).struct)


def function(one: Any) -> str:
    return next(frame.function for frame in one.frames if frame.function in OWN)


def test_exactly_the_planted_changes(answer: Any) -> None:
    found = {(one.old_version, one.new_version, function(one), one.change) for one in answer.changes}
    assert found == {
        ("1.9", "1.10", "open_session", "grown"),
        ("1.9", "1.10", "parse_coupon", "gone"),
        ("1.10", "2.0-beta", "show_banner", "new"),
    }
    assert all(one.q < 1e-6 and (one.old_of, one.new_of) == (30, 30) for one in answer.changes)


def test_what_only_one_abi_shows(answer: Any) -> None:
    (one,) = answer.only_on
    assert (function(one), one.dimension, one.value) == ("align_for_arm", "abi", "arm64-v8a")
    assert (one.recordings, one.of) == (45, 45) and one.p < 1e-9


def test_sums_are_those_of_the_recordings(answer: Any, farm: Path) -> None:
    """Against each recording's own report."""
    profiles = [read_profile(path, View()) for path in sorted(farm.iterdir())]
    assert answer.counted == len(profiles) == 90
    assert sum(row.inuse_space for row in answer.recordings) == sum(p.totals.inuse_space for p in profiles)
    for site in answer.sites:
        held = sorted(sum(s.inuse_space for s in p.sites if s.id == site.id) for p in profiles)
        assert site.mean_space == pytest.approx(sum(held) / 90)
        assert (site.p50, site.p90, site.p99) == (held[44], held[80], held[89])
        assert site.recordings == sum(any(s.id == site.id for s in p.sites) for p in profiles)
    assert sum(site.mean_space for site in answer.sites) == pytest.approx(
        sum(s.inuse_space for p in profiles for s in p.sites) / 90
    )


def test_blocks_without_a_stack_are_in_the_mean(farm: Path, tmp_path: Path) -> None:
    """They are in no site, and not lost: limits count them."""
    shelf, dataset = tmp_path / "shelf", tmp_path / "dataset"
    shelf.mkdir()
    for path in sorted(farm.iterdir())[:3]:
        without_a_stack(path, shelf / path.name)
    words = ["fleet", "report", shelf, "--dataset", dataset, "-o", tmp_path / "out.json", "--format", "json"]
    assert run(list(map(str, words))) == 6  # more than --max-lost of each has no stack
    keys = sorted(path.stem for path in (dataset / "recordings").iterdir())
    mean = make_fleet_profile(Dataset(str(dataset)), Worked(keys), [], 0.0, 0.0).mean
    profiles = [read_profile(path, View()) for path in sorted(shelf.iterdir())]
    held = sum(p.totals.unattributed_space for p in profiles)
    assert held > 0 and mean.totals.unattributed_space == pytest.approx(held / 3, abs=1)
    assert mean.totals.unattributed_objects == 1
    sites = sum(site.inuse_space for site in mean.sites)
    assert mean.totals.inuse_space == sites + mean.totals.unattributed_space
    assert {site.end for site in mean.sites} == {site.end for p in profiles for site in p.sites}


def test_versions_are_in_the_order_of_people(answer: Any) -> None:
    assert [one.version for one in answer.versions] == ["1.9", "1.10", "2.0-beta"]
    assert [one.recordings for one in answer.versions] == [30, 30, 30]
    banner = next(site for site in answer.sites if function(site) == "show_banner")
    assert banner.versions == ["2.0-beta"] and banner.share == pytest.approx(1 / 3)


def test_the_schema_that_is_shipped() -> None:
    assert_golden(json.dumps(json_schema(), indent=1) + "\n", "../../../host/reports/json/fleet.schema.json")
