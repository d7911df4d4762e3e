"""The thread that makes our calls waits on as if nothing had been: no system call of its own ends with EINTR."""

import platform

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
