"""The thread that makes our calls waits on as if nothing had been: no system call of its own ends with EINTR."""

from __future__ import annotations

import platform
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attached_session import attach, started
from tests.support.workloads import PROGRAMS, built

RESTARTED = ["nanosleep", "clock_nanosleep", "poll", "select", "futex"]
# The kernel ends these with EINTR at every stop of a debugger (signal(7)); on arm64 it has lost their first argument by then.
REPEATED = ["epoll", "semop", "accept", "recv", "read"]


@pytest.mark.parametrize("wait", RESTARTED + REPEATED if platform.machine() == "x86_64" else RESTARTED)
def test_it_is_not_interrupted(wait: str) -> None:
    with started(built(PROGRAMS / "interrupted_waits"), wait) as process:
        assert not attach(process.pid).error
        process.terminate()
        assert process.wait(60) == 0


@contextmanager
def ignored_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Without a tracer the kernel drops them."""
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(0.0002):
            process.send_signal(signal.SIGWINCH)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


@pytest.mark.parametrize("wait", ["epoll", "semop", "recv"])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="such waits stay ended elsewhere")
def test_signals_that_are_ignored_do_not_interrupt_it(wait: str) -> None:
    with started(built(PROGRAMS / "interrupted_waits"), wait) as process:
        with ignored_signals(process):
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
