"""--adaptive: everything is counted, and what holds much or grows has its stack."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.workloads import Run, built, functions, run

PATHS = 4096
SESSIONS_MAX = 5


def traced(folder: Path, *options: str, many: int = 0) -> Run:
    command = (built("hot_and_cold"), "4", str(PATHS), str(many))
    return run("bpf", folder, "--", *command, options=options)


def held_by_function(result: Run) -> Counter[str]:
    found = Counter[str]()
    for site in result.sites():
        found[functions(site)[1]] += site["inuse_space"]
    return found


@pytest.mark.timeout(120)
def test_hot_sites_have_whole_stacks_and_cold_ones_are_counted(tmp_path: Path) -> None:
    """The block that came once, the leak, and the one that only grows; 4096 paths with 16 bytes each are cold. All are hot
    before the agent's first look, which a busy machine puts off: again then, with the same checks."""
    found: list[int] = []
    while max(found, default=0) <= PATHS / 8 and len(found) < SESSIONS_MAX:
        folder = tmp_path / str(len(found))
        folder.mkdir()
        found.append(checked_cold(folder))
    assert max(found) > PATHS / 8, found


def checked_cold(folder: Path) -> int:
    """How many blocks of cold paths have no stack."""
    result = traced(folder, "--adaptive")
    totals, held = result.totals, held_by_function(result)
    assert result.report["verdict"] == "ok" and totals["lost"] == {}
    assert {site["end"] for site in result.sites()} == {"ROOT"}
    assert held["hold_once"] == 1 << 20
    assert held["hold_often"] % 4096 == 0 and held["hold_often"] > totals["inuse_space"] / 100
    assert held["grow_slowly"] >= 24 * 10
    assert sum(held.values()) + totals["unattributed_space"] == totals["inuse_space"]
    n_cold = int(totals["unattributed_objects"])
    assert totals.get("unasked_objects", 0) == n_cold, totals
    assert not n_cold or any("--adaptive" in note for note in result.report["notes"])
    return n_cold


@pytest.mark.proof
@pytest.mark.timeout(120)
def test_what_many_stacks_hold_together_has_stacks(tmp_path: Path) -> None:
    """900 paths, each far below a percent, none of which grows."""
    result = traced(tmp_path, "--adaptive", many=900)
    deep = [site for site in result.sites() if functions(site)[1] in ("left", "right")]
    assert len([site for site in deep if site["inuse_space"] == 256]) == 900
    assert result.totals["inuse_space"] / 256 > 256


@pytest.mark.proof
@pytest.mark.timeout(120)
def test_cold_stacks_are_not_sent(tmp_path: Path) -> None:
    """Without the option the same paths send at least one stack each."""
    folder = tmp_path / "all"
    everything = traced(tmp_path, "-o", str(folder))
    assert everything.totals["unattributed_objects"] == 0
    assert len([site for site in everything.sites() if functions(site)[1] in ("left", "right")]) == PATHS
    assert "unasked_objects" not in everything.totals


def test_only_bpf_leaves_stacks_out(tmp_path: Path) -> None:
    result = run("preload", tmp_path, "--", "/bin/true", options=["--adaptive"], codes=(2,))
    assert result.errors == ["--adaptive with --tracer preload: only BPF leaves stacks out; use one of them"]
