"""Expected results of --extend-stacks for tests/device/programs/late_stacks.c."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.workloads import functions

PROGRAM = Path(__file__).parent.parent / "device" / "programs" / "late_stacks.c"
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
