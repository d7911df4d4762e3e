"""A function of a pair that an exception or a cancelled thread leaves: the program goes on as if nobody measured."""

from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import TRACERS, WORKLOADS, traced
from tests.support.workloads import built

HELD = {"cxx": {"main": (300, 3)}, "fd": {"main": (2, 2)}}


@pytest.mark.parametrize("pairs", HELD)
@pytest.mark.parametrize("tracer", TRACERS)
def test_what_they_leave_is_not_held_and_the_program_lives(tracer: str, pairs: str, tmp_path: Path) -> None:
    """By a return probe, operator new ended the program at its first exception, and open() kept the destructor from running."""
    program = built(WORKLOADS / "left_by_unwinding.cc", "-pthread")
    report = traced(tracer, tmp_path, (pairs,), program).report
    found: dict[str, tuple[int, int]] = {}
    for site in report["sites"]:
        if site["kind"] == f"pair:{pairs}":
            caller = next(frame["function"] for frame in site["frames"][1:] if "new" not in frame["function"])
            space, objects = found.get(caller, (0, 0))
            found[caller] = (space + site["inuse_space"], objects + site["inuse_objects"])
    assert found == HELD[pairs]
    assert report["totals"]["lost"] == {}
