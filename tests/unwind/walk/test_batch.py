"""Whole stacks of running programs against eu-stack, and the lock-step against the scalar unwinder."""

from pathlib import Path

import numpy as np
import pytest

from memleak_android.unwind import AddressSpace, TraceEnd, unwind_batch
from tests.support.running_program import blocked, eu_stack
from tests.support.stack_capture import FileModules, assert_same_traces, capture, sample_batch

PYTHON = "import time; sorted([2, 1], key=lambda x: time.sleep(60))"
PROGRAMS = {
    "python3": ["/usr/bin/python3", "-c", PYTHON],
    "bash": ["/bin/bash", "-c", "f() { read x; }; f"],
    "git": ["/usr/bin/git", "hash-object", "--stdin"],
    "perl": ["/usr/bin/perl", "-e", "sub f { <STDIN> } f()"],
    "sqlite3": ["/usr/bin/sqlite3"],
    "jq": ["/usr/bin/jq", "."],
}


THREADS = (
    "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(3)]"
)
PROGRAMS_WITH_THREADS = ["/usr/bin/python3", "-c", THREADS]


@pytest.mark.parametrize("name", PROGRAMS)
def test_running_program_equals_eu_stack(name: str) -> None:
    argv = PROGRAMS[name]
    if not Path(argv[0]).exists():
        pytest.skip(f"{argv[0]} is not installed")
    with blocked(argv) as pid:
        stack, space, modules = capture(pid)
        wanted = eu_stack(pid)
    samples = sample_batch([stack])
    traces = unwind_batch(samples, [space], modules)
    assert len(wanted) > 3
    assert [hex(x) for x in traces.address.tolist()] == [hex(x) for x in wanted]
    assert traces.end[0] == TraceEnd.ROOT
    assert_same_traces(samples, [space], modules)


def test_threads_equal_eu_stack() -> None:
    """Stacks that begin in clone3, several threads captured as one batch."""
    with blocked(PROGRAMS_WITH_THREADS) as pid:
        tids = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
        captured = [capture(tid) for tid in tids]
        wanted = [eu_stack(tid) for tid in tids]
    _, space, modules = captured[0]
    samples = sample_batch([stack for stack, _, _ in captured])
    traces = unwind_batch(samples, [space], modules)
    assert len(tids) == 4
    for i, frames in enumerate(wanted):
        assert traces.address[traces.offsets[i] : traces.offsets[i + 1]].tolist() == frames
    assert set(traces.end.tolist()) == {TraceEnd.ROOT}
    assert_same_traces(samples, [space], modules)


def test_truncated_slices_end_as_such_and_keep_a_prefix() -> None:
    with blocked(PROGRAMS["bash"]) as pid:
        stack, space, modules = capture(pid)
    whole = unwind_batch(sample_batch([stack]), [space], modules).address.tolist()
    cut = [
        type(stack)(stack.registers, stack.stack_address, stack.stack[:n])
        for n in range(0, len(stack.stack), 61)
    ]
    samples = sample_batch(cut)
    traces = unwind_batch(samples, [space], modules)
    ends = set()
    for i in range(len(cut)):
        found = traces.address[traces.offsets[i] : traces.offsets[i + 1]].tolist()
        assert found == whole[: len(found)]
        ends.add(TraceEnd(traces.end[i]))
        assert (traces.end[i] == TraceEnd.ROOT) == (len(found) == len(whole))
    assert ends == {TraceEnd.ROOT, TraceEnd.STACK_TRUNCATED}
    assert_same_traces(samples, [space], modules)


def test_spaces_are_kept_apart() -> None:
    """The same addresses in two address spaces, of which one has no mappings there."""
    with blocked(PROGRAMS["bash"]) as pid:
        stack, space, modules = capture(pid)
    other = type(stack)(stack.registers, stack.stack_address, stack.stack, space=1)
    traces = unwind_batch(sample_batch([stack, other, stack]), [space, AddressSpace([])], modules)
    assert traces.end.tolist() == [TraceEnd.ROOT, TraceEnd.NO_MAPPING, TraceEnd.ROOT]
    assert np.diff(traces.offsets)[1] == 1


def test_empty_batch() -> None:
    traces = unwind_batch(sample_batch([]), [], FileModules())
    assert len(traces) == 0 and traces.offsets.tolist() == [0]
