"""`--extend-stacks`: the rest of stacks longer than their slices, and never that of another call (late_stacks.c).

By BPF it is read after the call, by the shim at once.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.late_stacks import (
    CUT,
    INNER,
    OPTIONS,
    PROGRAM,
    STANDING,
    Site,
    check_marks,
    check_parents,
    own_sites,
    sizes,
)
from tests.support.workloads import FLAGS, functions, run

ROUNDS = 200
SESSIONS_MAX = 5


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("late") / "late_stacks"
    command = ["cc", *FLAGS, "-fno-optimize-sibling-calls", "-pthread", "-o", target, PROGRAM]
    subprocess.run(command, check=True)
    return str(target)


def session(
    program: str, mode: str, folder: Path, *, tracer: str = "bpf", rounds: int = ROUNDS, extend: bool = True
) -> tuple[list[Site], str]:
    """Sites of the program's own blocks, and the printed report."""
    options = OPTIONS if extend else [option for option in OPTIONS if option != "--extend-stacks"]
    result = run(tracer, folder, "--", program, mode, str(rounds), options=list(options))
    return own_sites(result.report), result.out


def sessions(program: str, mode: str, folder: Path) -> Iterator[list[Site]]:
    """Of one after another what was found, until a stack had changed before its rest was read: the processors say when."""
    for number in range(SESSIONS_MAX):
        (folder / str(number)).mkdir()
        found, printed = session(program, mode, folder / str(number))
        yield found
        changed = re.search(r"(\d+) had changed by then", printed)
        if changed and int(changed[1]):
            return
    pytest.fail("no stack had changed: nothing was put to the test")


@pytest.mark.parametrize(
    "mode",
    ["calls", "threads", *(pytest.param(one, marks=pytest.mark.proof) for one in ("jumps", "coroutines"))],
)
def test_the_parent_is_that_of_the_call(program: str, mode: str, tmp_path: Path) -> None:
    """The stack is another call's a moment later. What is completed has the parent that the block's size names."""
    for found in sessions(program, mode, tmp_path):
        assert sum(site["inuse_objects"] for site in found) == 2 * ROUNDS + 2
        check_parents(found)
        for site in found:
            if site["end"] != CUT:
                check_marks(site)


@pytest.mark.proof
def test_one_function_that_calls_itself(program: str, tmp_path: Path) -> None:
    """Frames that are alike, more or fewer of them from call to call: as many as the block's size names."""
    for found in sessions(program, "recursion", tmp_path):
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
def test_the_shim_reads_the_rest_at_once(program: str, mode: str, tmp_path: Path) -> None:
    """In the thread that allocates: no stack has changed, none is cut, and nothing is late."""
    found, printed = session(program, mode, tmp_path, tracer="preload")
    assert sum(site["inuse_objects"] for site in found) == 2 * ROUNDS + 2
    assert {site["end"] for site in found} == {"ROOT"}
    assert "(late)" not in printed
    check_parents(found)


def test_the_shim_leaves_stacks_that_are_not_the_threads_own(program: str, tmp_path: Path) -> None:
    """Its owner may unmap it: the kernel reads it as far as a slice goes."""
    found, _ = session(program, "coroutines", tmp_path, tracer="preload")
    assert {(site["end"], *functions(site)) for site in found} == {(CUT, *INNER)}


def test_without_it_the_stack_is_cut(program: str, tmp_path: Path) -> None:
    found, printed = session(program, "calls", tmp_path, rounds=2, extend=False)
    assert {(site["end"], *functions(site)) for site in found} == {(CUT, *INNER)}
    assert "(late)" not in printed
    assert "--extend-stacks" in printed, "the way out is named"


def test_stacks_that_are_whole_cost_nothing(program: str, tmp_path: Path) -> None:
    """No slice is too short: no note, and no late frame."""
    result = run("bpf", tmp_path, "--", program, "calls", "3", options=["--extend-stacks"])
    assert {site["end"] for site in result.sites()} == {"ROOT"}
    assert result.report["unwinding"]["late"] == 0
    assert "longer than their slices" not in result.out


def test_where_it_cannot_be_done_it_is_said(program: str, tmp_path: Path) -> None:
    options = [*OPTIONS, "--perf-events"]
    report = run("bpf", tmp_path, "--", program, "calls", "20", options=options).report
    assert {site["end"] for site in own_sites(report)} == {CUT}
    assert any("--extend-stacks has no effect on this kernel" in note for note in report["notes"])
