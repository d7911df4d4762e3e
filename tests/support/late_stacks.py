"""What a report has to say of two programs of tests/device/programs: late_stacks.c with --extend-stacks, nested_program.c."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.workloads import functions

_FOLDER = Path(__file__).resolve().parents[1] / "device" / "programs"
PROGRAM = _FOLDER / "late_stacks.c"
OPTIONS = ("--stack-bytes", "4096", "--every-stack", "--show-allocs", "--extend-stacks")
STANDING = 3000  # blocks of this size and above are of a thread that stood still after the call
INNER = ["malloc", "take", "middle"]  # in the slice
PARENTS = {1: "parent_a", 0: "parent_b"}  # by thousands of bytes, odd or even
CUT = "STACK_TRUNCATED"

Site = Mapping[str, Any]


def own_sites(report: Mapping[str, Any]) -> list[Site]:
    """Of the program's own blocks."""
    return [site for site in report["sites"] if "take" in functions(site)]


def sizes(site: Site) -> list[int]:
    return [block["size"] for block in site["blocks"]]


def check_marks(site: Site) -> None:
    """Late are the frames beyond the slice, and all of them."""
    is_late = [frame["method"] == "late" for frame in site["frames"]]
    assert is_late == [False] * len(INNER) + [True] * (len(is_late) - len(INNER))


def check_parents(sites: Iterable[Site]) -> None:
    """Stacks that are not cut have the parent that their blocks' sizes name; none is cut whose thread stood still."""
    seen = set[str]()
    for site in sites:
        if site["end"] == CUT:
            assert functions(site) == INNER
            assert max(sizes(site)) < STANDING, "a thread stood still, and its stack was not completed"
            continue
        (parent,) = {PARENTS[size // 1000 % 2] for size in sizes(site)}
        assert functions(site)[: len(INNER) + 5] == [*INNER, *["again"] * 4, parent]
        seen.add(parent)
    assert seen == set(PARENTS.values())


# ---- allocations inside allocations that have not returned ----

ALLOCATOR, NESTED = _FOLDER / "nested_allocator.c", _FOLDER / "nested_program.c"
PREFIX = "nested_"  # of the allocator's functions
DEPTH, NESTED_ROUNDS = 12, 5  # of the program
KEPT = 16  # ML_PENDING of device/bpf/session.h: calls of a thread that have not returned
LEVEL = ["descend", "nested_malloc", "keep"]


def check_nested(report: Mapping[str, Any]) -> None:
    """Each stack is the program's, up to main, however many calls are pending in it."""
    assert not any(report["totals"]["lost"].values())
    check_nested_blocks(report, DEPTH)


def check_nested_blocks(report: Mapping[str, Any], depth: int) -> None:
    """Those of the outermost levels, and no others."""
    assert report["totals"]["inuse_objects"] == depth * NESTED_ROUNDS
    assert {site["end"] for site in report["sites"]} == {"ROOT"}
    levels = {functions(site).index("main"): site for site in report["sites"]}
    assert sorted(levels) == [2 + len(LEVEL) * level for level in range(depth)]
    for level, site in enumerate(levels[at] for at in sorted(levels)):
        assert functions(site)[: 2 + len(LEVEL) * level] == ["malloc", "keep", *LEVEL * level]
        assert (site["inuse_space"], site["inuse_objects"]) == ((1000 + level) * NESTED_ROUNDS, NESTED_ROUNDS)
