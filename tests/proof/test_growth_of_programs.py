"""Classic cases of memory held over time, by a program that runs for twelve seconds: the trend of each, live and read back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.workloads import PROGRAM, both_tracers, built, functions, run

ROUNDS = 240  # of 50 ms
TRENDS = {
    "leak_per_request": "grows",
    "cache_without_bound": "grows",
    "realloc_growth": "grows",
    "cache_with_bound": "plateau",
    "init_once": "steady",
    "burst": "burst",
}
BYTES_PER_ROUND = {"leak_per_request": 7 * 1009, "cache_without_bound": 2003 / 3, "realloc_growth": 509}


def by_function(report: dict[str, object]) -> dict[str, dict[str, object]]:
    return {functions(site)[1]: site for site in report["sites"] if functions(site)[1] in TRENDS}


def check_rates(report: dict[str, object]) -> None:
    """In the proportions that the source says, whatever time a round took; each interval holds its own rate."""
    sites = by_function(report)
    rounds_per_s = sites["leak_per_request"]["growth_bytes_per_s"] / BYTES_PER_ROUND["leak_per_request"]
    assert 10 < rounds_per_s <= 20
    for name, expected in BYTES_PER_ROUND.items():
        found = sites[name]["growth_bytes_per_s"]
        assert found == pytest.approx(expected * rounds_per_s, rel=0.1), name
        assert sites[name]["growth"]["low"] <= found <= sites[name]["growth"]["high"]


@pytest.mark.proof
@both_tracers
def test_trend_of_each_case(tracer: str, tmp_path: Path) -> None:
    target = ("--", built("growth_cases"), str(ROUNDS))
    report = run(tracer, tmp_path, *target, options=["-o", tmp_path / "out"]).report
    assert {name: site["growth"]["trend"] for name, site in by_function(report).items()} == TRENDS
    check_rates(report)
    again = subprocess.run(
        [*PROGRAM, "report", tmp_path / "out" / "recording.memleak", "--format", "json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(again.stdout)["sites"] == report["sites"]


@pytest.mark.proof
def test_sampled_rate_is_within_its_interval(tmp_path: Path) -> None:
    target = ("--", built("growth_cases"), str(ROUNDS))
    report = run("preload", tmp_path, *target, options=["--sample-bytes", "4096"]).report
    leak = by_function(report)["leak_per_request"]
    assert leak["growth"]["trend"] == "grows"
    seconds_per_round = report["duration_ns"] / 1e9 / ROUNDS
    # 95 %, and the session's time is a little longer than the program's: twice the interval
    middle, half = leak["growth_bytes_per_s"], leak["growth"]["high"] - leak["growth"]["low"]
    assert abs(middle - 7 * 1009 / seconds_per_round) <= half
    assert half / middle > 0.05  # wider than what counting would give


@pytest.mark.proof
@both_tracers
def test_timeline_has_blocks_of_all_ages(tracer: str, tmp_path: Path) -> None:
    """Before the end as at it, whatever --older keeps out of the prints: stacks that are known hold all but what has none."""
    options = ["--interval", "300ms", "--older", "500ms"]
    report = run(tracer, tmp_path, "--", built("growth_cases"), "60", options=options).report
    later = [one for one in report["timeline"] if one["elapsed_ns"] > 1.5e9]
    assert len(later) >= 4
    for one in later:
        leak = sum(site["space"] for site in one["sites"])
        # a request and a reply that were allocated as the snapshot was taken may have no stack yet
        assert leak >= one["space"] - 2 * (5003 + 6007), one["elapsed_ns"]
