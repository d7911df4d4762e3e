"""`--extend-stacks`: the rest of stacks longer than their slices, and never that of another call (late_stacks.c).

By BPF it is read after the call, by the shim at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.late_stacks import (
    ALLOCATOR,
    CUT,
    INNER,
    KEPT,
    NESTED,
    NESTED_ROUNDS,
    OPTIONS,
    PREFIX,
    PROGRAM,
    STANDING,
    Site,
    check_marks,
    check_nested,
    check_nested_blocks,
    check_parents,
    own_sites,
    sizes,
)
from tests.support.workloads import built, functions, run

ROUNDS = 200
SESSIONS_MAX = 5
INCOMPLETE = 6


def session(
    mode: str, folder: Path, *, tracer: str = "bpf", rounds: int = ROUNDS, extend: bool = True
) -> tuple[list[Site], str]:
    """Sites of the program's own blocks, and the printed report."""
    options = OPTIONS if extend else [option for option in OPTIONS if option != "--extend-stacks"]
    result = run(
        tracer, folder, "--", built(PROGRAM), mode, str(rounds), options=list(options), codes=(0, 6)
    )  # 6: cut
    return own_sites(result.report), result.out


def sessions(mode: str, folder: Path) -> Iterator[list[Site]]:
    """Of one after another what was found, until a stack had changed before its rest was read: the processors say when."""
    for number in range(SESSIONS_MAX):
        (folder / str(number)).mkdir()
        found, printed = session(mode, folder / str(number))
        yield found
        changed = re.search(r"(\d+) had changed by then", printed)
        if changed and int(changed[1]):
            return
    pytest.fail("no stack had changed: nothing was put to the test")


@pytest.mark.parametrize(
    "mode",
    ["calls", *(pytest.param(one, marks=pytest.mark.proof) for one in ("threads", "jumps", "coroutines"))],
)
def test_the_parent_is_that_of_the_call(mode: str, tmp_path: Path) -> None:
    """The stack is another call's a moment later. What is completed has the parent that the block's size names."""
    for found in sessions(mode, tmp_path):
        assert sum(site["inuse_objects"] for site in found) == 2 * ROUNDS + 2
        check_parents(found)
        for site in found:
            if site["end"] != CUT:
                check_marks(site)


@pytest.mark.proof
def test_one_function_that_calls_itself(tmp_path: Path) -> None:
    """Frames that are alike, more or fewer of them from call to call: as many as the block's size names."""
    for found in sessions("recursion", tmp_path):
        assert sum(site["inuse_objects"] for site in found) == 8 * (ROUNDS + 1)
        whole = [site for site in found if site["end"] == "ROOT"]
        for site in whole:
            check_marks(site)
            (more,) = {size % 1000 for size in sizes(site)}
            assert functions(site).count("again") == 41 + more
        assert {site["inuse_objects"] for site in whole} >= {1}
        standing = [size for site in whole for size in sizes(site) if size >= STANDING]
        assert sorted(standing) == [STANDING + more for more in range(8)]


@pytest.mark.parametrize("mode", ["calls", "threads", "jumps"])
def test_the_shim_reads_the_rest_at_once(mode: str, tmp_path: Path) -> None:
    """In the thread that allocates: no stack has changed, none is cut, and nothing is late."""
    found, printed = session(mode, tmp_path, tracer="preload")
    assert sum(site["inuse_objects"] for site in found) == 2 * ROUNDS + 2
    assert {site["end"] for site in found} == {"ROOT"}
    assert "(late)" not in printed
    check_parents(found)


def test_the_shim_leaves_stacks_that_are_not_the_threads_own(tmp_path: Path) -> None:
    """Its owner may unmap it: the kernel reads it as far as a slice goes."""
    found, _ = session("coroutines", tmp_path, tracer="preload")
    assert {(site["end"], *functions(site)) for site in found} == {(CUT, *INNER)}


def test_without_it_the_stack_is_cut(tmp_path: Path) -> None:
    found, printed = session("calls", tmp_path, rounds=2, extend=False)
    assert {(site["end"], *functions(site)) for site in found} == {(CUT, *INNER)}
    assert "(late)" not in printed
    assert "--extend-stacks" in printed, "the way out is named"


def test_stacks_that_are_whole_cost_nothing(tmp_path: Path) -> None:
    """No slice is too short: no note, and no late frame."""
    result = run("bpf", tmp_path, "--", built(PROGRAM), "calls", "3", options=["--extend-stacks"])
    assert {site["end"] for site in result.sites()} == {"ROOT"}
    assert result.report["unwinding"]["late"] == 0
    assert "longer than their slices" not in result.out


def test_where_it_cannot_be_done_it_is_said(tmp_path: Path) -> None:
    options = [*OPTIONS, "--perf-events"]
    report = run("bpf", tmp_path, "--", built(PROGRAM), "calls", "20", options=options, codes=(6,)).report
    assert {site["end"] for site in own_sites(report)} == {CUT}
    assert any("--extend-stacks has no effect on this kernel" in note for note in report["notes"])


# ---- allocations inside allocations that have not returned: what return probes hide in the stack is put back


def nested(folder: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    """The report on the program."""
    library = built(ALLOCATOR, "-fPIC", "-shared")
    options = ["-O", library, "--symbols-prefix", PREFIX]
    return run("bpf", folder, "--", built(NESTED, *flags, library), options=options, codes=(code,)).report


def test_each_stack_is_the_program_s(tmp_path: Path) -> None:
    check_nested(nested(tmp_path))


def test_nesting_beyond_the_limit_is_reported(tmp_path: Path) -> None:
    too_deep = 4
    report = nested(tmp_path, f"-DDEPTH={KEPT + too_deep}", code=INCOMPLETE)
    lost = {cause: count for cause, count in report["totals"]["lost"].items() if count}
    assert lost == {"pending_full": too_deep * NESTED_ROUNDS}
    check_nested_blocks(report, KEPT)
