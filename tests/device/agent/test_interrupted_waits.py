"""The thread that makes our calls waits on as if nothing had been: no system call of its own ends with EINTR."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

from tests.support.attached_session import attach, started
from tests.support.workloads import PROGRAMS, built

RESTARTED = ["nanosleep", "clock_nanosleep", "poll", "select", "futex"]
# The kernel ends these with EINTR at every stop of a debugger (signal(7)); on arm64 it has lost their first argument by then.
REPEATED = ["epoll", "semop", "accept", "recv"]


@pytest.mark.parametrize("wait", RESTARTED + REPEATED if platform.machine() == "x86_64" else RESTARTED)
def test_it_is_not_interrupted(wait: str) -> None:
    with started(built(PROGRAMS / "interrupted_waits"), wait) as process:
        assert not attach(process.pid).error
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize("wait", ["epoll", "poll"])
def test_it_is_not_prolonged(wait: str) -> None:
    """By a session that begins and ends in the second half of the wait."""
    if "exec_start" not in Path("/proc/self/sched").read_text() or platform.machine() != "x86_64":
        pytest.skip("the kernel does not show when a thread fell asleep, or ends the wait")
    with started(built(PROGRAMS / "interrupted_waits"), wait, "4000") as process:
        time.sleep(2.4)
        assert not attach(process.pid).error
        assert process.stdout is not None and process.stdout.readline() == b"in time\n"
        process.terminate()
        assert process.wait(60) == 0
