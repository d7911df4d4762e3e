"""Holders of the high-water mark, and stacks of short-lived blocks: both are gone at the program's end.

The mark itself, against massif: tests/device/shim/test_peak.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.program_server import run_program
from tests.support.workloads import both_tracers, built, functions, run

SPIKE, BASE, TEMPORARY = 1000 * 10_007, 101 * 5003, 60_000


def by_function(sites: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {functions(site)[1]: site for site in sites}


@pytest.mark.proof
@both_tracers
def test_peak_and_churn(tracer: str, tmp_path: Path) -> None:
    report = run(tracer, tmp_path, "--", built("peak_and_churn"), options=["-o", tmp_path / "out"]).report
    peak = report["peak"]
    held = by_function(peak["sites"])
    assert (held["spike"]["space"], held["base"]["space"]) == (SPIKE, BASE)
    churn = report["churn"]
    assert functions(churn[0])[1] == "temporary"
    of_temporary = [site for site in churn if functions(site)[1] == "temporary"]
    # the calls before their function was learned can have a key of their own, which is not sent
    assert TEMPORARY - 500 <= sum(site["objects"] for site in of_temporary) <= TEMPORARY
    assert by_function(churn)["spike"]["space"] == SPIKE
    again = run_program(["report", tmp_path / "out" / "recording.memleak", "--format", "json"])
    read = json.loads(again.stdout)
    assert (read["peak"], read["churn"]) == (peak, churn)
