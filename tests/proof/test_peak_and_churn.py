"""Holders of the high-water mark, and stacks of short-lived blocks: both are gone at the program's end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.workloads import PROGRAM, both_tracers, built, functions, run

SPIKE, BASE, TEMPORARY = 1000 * 10_007, 101 * 5003, 60_000


def by_function(sites: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {functions(site)[1]: site for site in sites}


def massif_peak(folder: Path) -> int:
    """Bytes of the heap at its highest, by valgrind's massif."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    massif_file = folder / "massif"
    words = ["-q", "--tool=massif", "--peak-inaccuracy=0.0", f"--massif-out-file={massif_file}"]
    subprocess.run(["valgrind", *words, built("peak_and_churn")], check=True, timeout=300)
    (held,) = re.findall(r"mem_heap_B=(\d+)\n(?:mem_.*\n)*heap_tree=peak", massif_file.read_text())
    return int(held)


@pytest.mark.proof
@both_tracers
def test_peak_and_churn(tracer: str, tmp_path: Path) -> None:
    report = run(tracer, tmp_path, "--", built("peak_and_churn"), options=["-o", tmp_path / "out"]).report
    peak = report["peak"]
    assert abs(peak["space"] - massif_peak(tmp_path)) <= 613  # one temporary block may be there
    held = by_function(peak["sites"])
    assert (held["spike"]["space"], held["base"]["space"]) == (SPIKE, BASE)
    churn = report["churn"]
    assert functions(churn[0])[1] == "temporary"
    of_temporary = [site for site in churn if functions(site)[1] == "temporary"]
    # the calls before their function was learned can have a key of their own, which is not sent
    assert TEMPORARY - 500 <= sum(site["objects"] for site in of_temporary) <= TEMPORARY
    assert by_function(churn)["spike"]["space"] == SPIKE
    again = subprocess.run(
        [*PROGRAM, "report", tmp_path / "out" / "recording.memleak", "--format", "json"],
        capture_output=True,
        check=True,
    )
    read = json.loads(again.stdout)
    assert (read["peak"], read["churn"]) == (peak, churn)
