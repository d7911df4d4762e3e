"""The peak, temporary allocations and ages of blocks, on hand-made recordings: raw and finished tell the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.heap import high_water as peak
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.key_history import KeySnapshot
from memleak_android.host.profile.profile import PastSite, Profile
from memleak_android.host.reports.html.page_data import profile_data
from memleak_android.host.reports.text.past import ages_text
from memleak_android.host.wire.blocks import HELD_ROW, Block, Function
from tests.support.builders.analysed import profile_of
from tests.support.builders.blocks import (
    SECOND,
    hello,
    key_rows,
    live_rows,
    short_recording,
    snapshot,
    status,
)
from tests.support.written import read_back, written_text

BASE, SPIKE, TEMPORARY = 7, 9, 11  # keys
VADDR = {BASE: 0x1000, SPIKE: 0x2000, TEMPORARY: 0x3000}
COUNTERS = (
    {"key": BASE, "alloc_objects": 2, "alloc_bytes": 2018},
    {"key": SPIKE, "alloc_objects": 3, "alloc_bytes": 15_009, "free_objects": 3, "free_bytes": 15_009},
    {"key": TEMPORARY, "alloc_objects": 997, "alloc_bytes": 9_970, "free_objects": 997, "free_bytes": 9_970},
)
BASES = tuple({"sequence": n, "key": BASE, "size": 1009, "timestamp_ns": 2 * SECOND} for n in (1, 2))
SPIKES = tuple({"sequence": n, "key": SPIKE, "size": 5003, "timestamp_ns": 4 * SECOND} for n in (3, 4, 5))
REGION = {"sequence": 6, "key": 13, "size": 1 << 20, "function": int(Function.MMAP)}


def at(seconds: int, *rows: dict[str, int]) -> list[Block]:
    keys = key_rows(*COUNTERS)
    return snapshot(live_rows(*rows), keys, number=seconds, timestamp_ns=SECOND + seconds * SECOND)


QUIET, HIGH, END = at(2, *BASES), at(5, *BASES, *SPIKES), at(9, *BASES)


def recording(path: Path, *snapshots: list[Block], highest: int = 0) -> Path:
    blocks = [status(alloc_bytes=highest), *(block for one in snapshots for block in one)]
    counts = status(alloc_objects=1_002, alloc_bytes=26_997)
    return short_recording(path, *blocks, vaddrs=VADDR, counts=counts)


def shape(sites: tuple[PastSite, ...]) -> list[tuple[int, int, int | None]]:
    return [(site.frames[1].vaddr, site.space, site.objects) for site in sites]


def test_sites_of_a_freed_peak_and_of_temporary_allocations(tmp_path: Path) -> None:
    path = recording(tmp_path / "a", QUIET, HIGH, END, highest=30_000)
    profile = profile_of(path, finished=tmp_path / "b")
    assert profile.peak is not None and profile.peak.level == 30_000
    assert (profile.peak.elapsed_ns, profile.peak.space) == (5 * SECOND, 2018 + 15_009)
    assert shape(profile.peak.sites) == [(0x2000, 15_009, None), (0x1000, 2018, None)]
    assert [site.frames[1].vaddr for site in profile.sites] == [0x1000]
    assert shape(profile.churn) == [(0x3000, 9_970, 997), (0x2000, 15_009, 3)]
    assert profile_of(tmp_path / "b") == profile


def test_the_end_may_be_the_peak(tmp_path: Path) -> None:
    assert profile_of(recording(tmp_path / "a", QUIET, HIGH)).peak is None
    assert profile_of(recording(tmp_path / "b", END)).peak is None


def test_the_peak_excludes_regions(tmp_path: Path) -> None:
    """They hold the heap; a later snapshot with a large region is not higher."""
    with_region = at(7, *BASES, REGION)
    profile = profile_of(recording(tmp_path / "a", HIGH, with_region, END))
    assert profile.peak is not None and profile.peak.elapsed_ns == 5 * SECOND
    held_high = at(5, *BASES, *SPIKES, REGION)
    profile_of(recording(tmp_path / "b", held_high, END), finished=tmp_path / "c")
    for name in ("b", "c"):
        profile = profile_of(tmp_path / name)
        assert profile.peak is not None and profile.peak.space == 2018 + 15_009


def test_an_extra_snapshot_is_none_that_growth_is_judged_by(tmp_path: Path) -> None:
    capture = Capture()
    for block in (hello(monotonic_ns=SECOND), *QUIET):
        capture.add(block, -1)
    capture.is_whole_extra = True
    for block in (*HIGH, *END):
        capture.add(block, -1)
    assert [one.timestamp_ns for one in capture.key_history.instants] == [6 * SECOND]
    assert capture.high_water.at is not None


def test_keys_of_the_peak_are_bounded_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "KEYS_MAX", 10)
    rows = np.zeros(101, HELD_ROW)
    rows["key"], rows["space"] = np.arange(1, 102), np.arange(1, 102)
    kept = peak.largest_keys(rows)
    assert (len(kept), int(kept["space"].sum())) == (11, 101 * 102 // 2)
    assert kept["key"][0] == 101
    assert kept["key"][-1] == 0


def test_hostile_peak_ends_in_no_failure() -> None:
    rows = np.zeros(2, HELD_ROW)
    rows["space"] = 2**64 - 1
    rows["variance"] = np.inf
    high_water = peak.HighWater()
    high_water.set_recorded(KeySnapshot(0, rows))
    high_water.add_snapshot(1, live_rows(*BASES))
    assert high_water.at is not None


def test_ages(tmp_path: Path) -> None:
    rows = [
        {**BASES[0], "sequence": n, "timestamp_ns": (100 - age) * SECOND}
        for n, age in enumerate((0, 0.5, 5, 9.9, 59, 60), 1)
    ]
    rows = [{name: int(value) for name, value in row.items()} for row in rows]
    (site,) = profile_of(recording(tmp_path / "a", at(99, *rows))).sites
    assert site.ages == (2, 2, 1, 1, 0, 0)
    assert ages_text(site.ages) == " (33% below 1 s, 33% below 10 s, 17% below 1 min, 17% below 10 min)"
    assert ages_text((0, 7, 0, 0, 0, 0)) == ages_text(()) == ""
    assert ages_text((0, 0, 0, 0, 1, 1)) == " (50% below 1 h, 50% from 1 h on)"


def lines(profile: Profile, sort: str) -> list[str]:
    return written_text("text", profile, top=1, sort=sort).splitlines()


def test_text_json_and_page(tmp_path: Path) -> None:
    profile = profile_of(recording(tmp_path / "a", QUIET, HIGH, END))
    peak = "17,027 bytes at 0:05 (up to 26,997 between snapshots), 2,018 at the end"
    shown = lines(profile, "peak")
    assert f"peak      {peak} (--sort peak)" in shown
    assert shown[shown.index(f"at the peak: {peak}") + 1] == "  1. 15,009 bytes from stack"
    shown = lines(profile, "churn")
    given = "24,979 bytes in 1,000 allocations, 100% of them by 2 stacks"
    assert f"given back     {given} (--sort churn)" in shown
    assert shown[shown.index(f"temporary allocations: {given}") + 1].startswith(
        "  1. 9,970 bytes in 997 alloc"
    )
    again = read_back(profile)
    assert (again.peak, again.churn) == (profile.peak, profile.churn)
    assert [site.ages for site in again.sites] == [site.ages for site in profile.sites]
    page = profile_data(profile)
    assert [row["space"] for row in page["peak"]["rows"]] == [15_009, 2018]
    assert [row["objects"] for row in page["churn"]] == [997, 3]
    unknown = replace(profile, peak=None, churn=())
    assert "at the peak: no earlier snapshot held more than the end" in lines(unknown, "peak")
    assert "temporary allocations: not known" in lines(unknown, "churn")
