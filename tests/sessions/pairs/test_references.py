"""Reference counts: each call that acquires an object again is one more block, until a release takes one."""

from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import TRACERS, WORKLOADS, in_library, traced
from tests.sessions.pairs.kept import held


@pytest.mark.parametrize("tracer", TRACERS)
def test_each_reference_counts(tracer: str, tmp_path: Path) -> None:
    program = in_library(tmp_path, "references.c", "references_main.c")
    done = traced(tracer, tmp_path, (str(WORKLOADS / "references.toml"),), program)
    assert held(done.report, "pair:object") == {
        ("object_hold", "main"): (20, 20),
        ("object_hold", "hold_again"): (2, 2),
    }
    assert not done.totals["lost"] and not done.totals["untracked_frees"]


@pytest.mark.parametrize("tracer", TRACERS)
def test_more_than_the_table_has_room_for_are_lost(tracer: str, tmp_path: Path) -> None:
    program = in_library(tmp_path, "references.c", "references_main.c")
    done = traced(tracer, tmp_path, (str(WORKLOADS / "references.toml"),), program, "many", codes=(6,))
    assert done.totals["inuse_objects"] + done.totals["lost"]["table_full"] == 20 + 1000
    assert 30 <= done.totals["inuse_objects"] - 20 < 1000
