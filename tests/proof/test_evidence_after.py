"""--evidence-after: stacks of what has lived for so long, and of nothing else; all of it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workloads import built, functions, run


@pytest.mark.timeout(120)
def test_only_old_blocks_have_stacks(tmp_path: Path) -> None:
    """hot_and_cold runs for 4 s: its leak begins at once, the blocks of 16 bytes are those of its last moment."""
    command = (built("hot_and_cold"), "4", "512")
    result = run("bpf", tmp_path, "--", *command, options=["--evidence-after", "3s"])
    totals = result.totals
    held = {functions(site)[1]: site["inuse_space"] for site in result.sites()}
    assert result.report["verdict"] == "ok" and totals["lost"] == {}
    assert set(held) == {"hold_often"} and held["hold_often"] % 4096 == 0
    assert held["hold_often"] + totals["unattributed_space"] == totals["inuse_space"]
    assert totals["unasked_objects"] == totals["unattributed_objects"] >= 512 + 2
    assert totals["unasked_space"] > 1 << 20, "hold_once is 2 s old at most"
    assert any("younger than 3 s (--evidence-after)" in note for note in result.report["notes"])


@pytest.mark.proof
@pytest.mark.timeout(120)
def test_blocks_that_come_of_age_have_stacks(tmp_path: Path) -> None:
    """The block that came in the middle lives for 2 s: past snapshots have seen it too young, the last one has not."""
    command = (built("hot_and_cold"), "4", "512")
    result = run("bpf", tmp_path, "--", *command, options=["--evidence-after", "1s"])
    held = {functions(site)[1]: site["inuse_space"] for site in result.sites()}
    assert held["hold_once"] == 1 << 20
    assert "left" not in held and "right" not in held
    assert result.totals["unasked_objects"] == result.totals["unattributed_objects"] >= 512
