"""Stacks of calls, through frames whose return addresses the kernel has exchanged."""

import pytest

from tests.support.snoop_runs import SnoopRun, snoop, snooped_program

pytestmark = pytest.mark.bpf

_MAIN = ("main", "__libc_start_call_main")


@pytest.fixture(scope="module", params=["trampoline", pytest.param("instructions", marks=pytest.mark.proof)])
def run(request: pytest.FixtureRequest) -> SnoopRun:
    return snoop(
        "-f", "recurse", "-f", "tail_*", "--filter", "recurse:arg0<=1", "--filter", "tail_to:arg0<=11",
        "--stacks", "--returns", request.param, command=[snooped_program("shapes.c")],
    )  # fmt: skip


def names(stack: list[str]) -> tuple[str, ...]:
    return tuple(frame.partition("+")[0].partition(" ")[0] for frame in stack)


def test_60_frames_of_return_probes_are_passed(run: SnoopRun) -> None:
    deep = [names(one["stack"]) for one in run.of("recurse", "entry") if one["depth"] == 59]
    assert len(deep) == 7
    for stack in deep:
        assert stack[:62] == ("recurse",) * 60 + _MAIN
        assert stack[-1] == "_start"


def test_a_tail_call_has_its_callers_caller(run: SnoopRun) -> None:
    stacks = [names(one["stack"]) for one in run.of("tail_to", "entry") if one["depth"] or "main" in str(one)]
    from_main = [stack for stack in stacks if "main" in stack]
    assert len(from_main) == 11
    assert {stack[:3] for stack in from_main} == {("tail_to", *_MAIN)}


def test_stacks_of_threads_end_where_threads_begin(run: SnoopRun) -> None:
    in_threads = [
        names(one["stack"]) for one in run.of("tail_to", "entry") if "in_thread" in str(one["stack"])
    ]
    assert len(in_threads) == 3 * 12
    assert {stack[:3] for stack in in_threads} == {("tail_to", "in_thread", "start_thread")}
    assert all(not stack[-1].startswith("[") for stack in in_threads)
