"""tests/device/programs/nested_program.c: allocations inside allocations that have not returned, and what a report has to say of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.workloads import functions

_FOLDER = Path(__file__).resolve().parents[1] / "device" / "programs"
ALLOCATOR, PROGRAM = _FOLDER / "nested_allocator.c", _FOLDER / "nested_program.c"
PREFIX = "nested_"  # of the allocator's functions
DEPTH, ROUNDS = 12, 5  # of the program
KEPT = 16  # ML_PENDING of device/bpf/session.h: calls of a thread that have not returned
LEVEL = ["descend", "nested_malloc", "keep"]


def check(report: Mapping[str, Any]) -> None:
    """Each stack is the program's, up to main, however many calls are pending in it."""
    assert not any(report["totals"]["lost"].values())
    check_blocks(report, DEPTH)


def check_blocks(report: Mapping[str, Any], depth: int) -> None:
    """Those of the outermost levels, and no others."""
    assert report["totals"]["inuse_objects"] == depth * ROUNDS
    assert {site["end"] for site in report["sites"]} == {"ROOT"}
    levels = {functions(site).index("main"): site for site in report["sites"]}
    assert sorted(levels) == [2 + len(LEVEL) * level for level in range(depth)]
    for level, site in enumerate(levels[at] for at in sorted(levels)):
        assert functions(site)[: 2 + len(LEVEL) * level] == ["malloc", "keep", *LEVEL * level]
        assert (site["inuse_space"], site["inuse_objects"]) == ((1000 + level) * ROUNDS, ROUNDS)
