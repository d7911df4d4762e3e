"""A running process is attached to by its modules' slots, measured, and left as it was, however the session ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.wire.blocks import BlockKind, StopMoment, Stopped
from tests.support.attached_session import (
    attach,
    contained,
    contents_of,
    layout_of,
    leak,
    loaded,
    start_agent,
)
from tests.support.attaching import until

pytestmark = pytest.mark.compares_code


def agents_child(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return int(children.read().split()[0])


def test_what_is_allocated_from_then_on_is_counted_and_the_process_is_left_as_it_was() -> None:
    with loaded(2) as process:
        leak(process)  # before: invisible
        before, layout = contents_of(process.pid), layout_of(process.pid)
        for _ in range(3):
            found = attach(process.pid, lambda: leak(process))
            assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23), found
            assert contents_of(process.pid) == before
            assert layout_of(process.pid) == layout
        leak(process)


def test_every_stop_is_reported() -> None:
    with loaded(3) as process:
        began_ns, meanwhile = time.monotonic_ns(), []
        found = attach(process.pid, lambda: meanwhile.append(time.monotonic_ns()))
        ended_ns = time.monotonic_ns()
    rows = np.concatenate(found.stops)
    assert (rows["pid"] == process.pid).all()
    ends_ns = rows["timestamp_ns"].astype(np.int64)
    begins_ns = ends_ns - rows["duration_ns"].astype(np.int64)
    assert (begins_ns < ends_ns).all()
    for moment, first_ns, last_ns in (
        (StopMoment.ATTACH, began_ns, meanwhile[0]),
        (StopMoment.DETACH, meanwhile[0], ended_ns),
    ):
        of_moment = rows["moment"] == moment
        assert begins_ns[of_moment].min() > first_ns and ends_ns[of_moment].max() < last_ns
        together, caller = (of_moment & (rows["stopped"] == each) for each in Stopped)
        assert (rows["n_threads"][together] == 4).all() and caller.sum() == 1
        # the one that calls was asked to stop with the others, and went on after them
        assert begins_ns[caller][0] < ends_ns[together][-1] < ends_ns[caller][0]


def test_slots_do_change_meanwhile() -> None:
    """Else the comparisons here would compare nothing."""
    with loaded(1) as process:
        before, meanwhile = contents_of(process.pid), []
        attach(process.pid, lambda: meanwhile.append(contents_of(process.pid)))
        assert len(meanwhile) == 1 and meanwhile != [before]
        assert contents_of(process.pid) == before


@pytest.mark.parametrize("victims", ["agent", "keeper", "agent and keeper"])
def test_hooks_are_removed_after_a_kill(victims: str) -> None:
    with loaded(2) as process:
        before = contents_of(process.pid)
        channel, session = start_agent(process.pid)
        for block in session.blocks():
            if block.kind == BlockKind.STOPS:
                break
        keeper = agents_child(channel.pid)
        for name, pid in (("keeper", keeper), ("agent", channel.pid)):
            if name in victims:
                os.kill(pid, signal.SIGKILL)
        if victims == "keeper":
            os.kill(channel.pid, signal.SIGTERM)
        if victims != "agent and keeper":  # else the next session does it
            assert until(lambda: contents_of(process.pid) == before), victims
        leak(process)
        session.close()
        found = attach(process.pid, lambda: leak(process))
        assert (found.error, found.sizes[5003]) == ("", 23)
        assert contents_of(process.pid) == before


def test_a_target_that_ends_ends_the_session() -> None:
    with loaded(2) as process:
        _, session = start_agent(process.pid)
        kinds = []
        for block in session.blocks():
            kinds.append(block.kind)
            if block.kind == BlockKind.STOPS and BlockKind.STATUS in kinds:
                process.kill()
        assert kinds[-1] == BlockKind.END
        session.close()


def test_a_process_that_is_not_there_is_the_targets_error() -> None:
    assert attach(2**22 - 1).error == f"there is no process {2**22 - 1} (list processes with ps)"


def test_a_process_with_files_and_a_network_of_its_own(tmp_path: Path) -> None:
    """As in a container: the shim gets there as a file without a name, and finds us all the same."""
    with contained(tmp_path) as (process, pid):
        for _ in range(2):
            found = attach(pid, lambda: leak(process))
            assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23), found
        assert not [
            fd for fd in os.listdir(f"/proc/{pid}/fd") if "memfd" in os.readlink(f"/proc/{pid}/fd/{fd}")
        ]


def test_a_process_with_files_of_its_own_and_no_proc_is_refused(tmp_path: Path) -> None:
    with contained(tmp_path, has_proc=False) as (_, pid):
        error = attach(pid).error
        assert error.startswith(f"process {pid} sees other files than the agent, and no /proc: ")
