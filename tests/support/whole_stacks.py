"""What a report has to say of two programs of tests/device/programs: whole_stacks.c by its modes, nested_program.c."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from memleak_android.host.analysis.sites import FOLDED
from tests.support.workloads import PROGRAMS, functions

PROGRAM = PROGRAMS / "whole_stacks.c"
ROUNDS, FIBERS, RECURSION = 5, 6, 5000
_SPREAD, _DEEP = ("spread",) * 3, ("deep",) * 4
# Callers of take() and take_above_locals() up to the program's outermost function, and their blocks.
STACKS: Mapping[str, Mapping[tuple[str, ...], int]] = {
    "holes": {
        (*_SPREAD, "several_holes", "turn_holes", "main"): ROUNDS,
        ("spread", "hole_beyond_a_slice", "turn_holes", "main"): ROUNDS,
        ("spread", "spread", "hole_beyond_a_walk", "turn_holes", "main"): ROUNDS,
        ("spread", "spread", "another_beyond_a_walk", "turn_holes", "main"): ROUNDS,
    },
    "threads": {
        (*_SPREAD, "several_holes", "in_thread"): ROUNDS,
        ("spread", "hole_beyond_a_slice", "in_thread"): ROUNDS,
        ("in_thread",): ROUNDS,
    },
    "fibers": {
        (*_SPREAD, "in_fiber"): ROUNDS * FIBERS // 2,
        (*_DEEP, "in_fiber"): ROUNDS * FIBERS // 2,
        (*_SPREAD, "several_holes", "turn_fibers", "main"): ROUNDS * FIBERS,
    },
    "signal": {
        (*_DEEP, "on_signal", "from_here", "turn_signal", "main"): ROUNDS,
        (*_DEEP, "on_signal", "from_there", "turn_signal", "main"): ROUNDS,
        (*_DEEP, "on_signal", "on_first_signal", "from_there", "turn_signal", "main"): ROUNDS,
        (*_DEEP, "on_signal", "from_here", "in_raising_fiber"): ROUNDS,
        (*_SPREAD, "several_holes", "turn_signal", "main"): ROUNDS,
    },
    "recursion": {  # RECURSION deep and more, folded
        ("deep",) + ("deep",) * 8 + (FOLDED,) + ("deep",) * 8 + ("turn_recursion", "main"): ROUNDS,
        ("even",)
        + ("odd", "even") * 8
        + (FOLDED,)
        + ("odd", "even") * 8
        + ("turn_recursion", "main"): ROUNDS,
    },
}
_TAKERS = {"take", "take_above_locals"}
_OUTERMOST = {"main", "in_thread", "in_fiber", "in_raising_fiber"}
_INTERRUPTED = {name for stack in STACKS["signal"] for name in stack}


def check(report: Mapping[str, Any], mode: str) -> None:
    """Every block has its stack, which is whole up to where it begins."""
    found = Counter[tuple[str, ...]]()
    for site in report["sites"]:
        names = functions(site)
        first = next((i for i, name in enumerate(names) if name in _TAKERS), len(names))
        if first == len(names):
            continue
        callers = names[first + 1 :]
        if "on_signal" in callers:  # leaves out raise() and what it calls
            callers = [name for name in callers if name in _INTERRUPTED]
        last = next((i for i, name in enumerate(callers) if name in _OUTERMOST), len(callers))
        found[tuple(callers[: last + 1])] += site["inuse_objects"]
        assert site["end"] == "ROOT", callers
    assert found == STACKS[mode]
    lost = {cause: n for cause, n in report["totals"]["lost"].items() if n}
    assert not lost, lost


# ---- allocations inside allocations that have not returned ----

ALLOCATOR, NESTED = PROGRAMS / "nested_allocator.c", PROGRAMS / "nested_program.c"
PREFIX = "nested_"  # of the allocator's functions
DEPTH, NESTED_ROUNDS = 12, 5  # of the program
KEPT = 16  # ML_PENDING of device/bpf/session.h: calls of a thread that have not returned
LEVEL = ["descend", "nested_malloc", "keep"]


def check_nested(report: Mapping[str, Any]) -> None:
    """Each stack is the program's, up to main, however many calls are pending in it."""
    lost = {cause: n for cause, n in report["totals"]["lost"].items() if n}
    assert not lost, lost
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
