"""How the attached process ended is in the report, though it is nobody's child here."""

import fcntl
import json
import os
import platform
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attached_session import attach, loaded, order, started
from tests.support.attaching import attached
from tests.support.workloads import PROGRAMS, built

pytestmark = pytest.mark.compares_code


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped at once", "a zombie"])
@pytest.mark.parametrize(
    ("tracer", "number", "text"),
    [
        ("bpf", signal.SIGKILL, "killed by signal 9"),
        ("plt", signal.SIGKILL, "killed by signal 9"),
        ("plt", 0, "exited with status 0"),
    ],
)
def test_its_end_is_said(tracer: str, number: int, text: str, reaped: bool, tmp_path: Path) -> None:
    if reaped and not has_exit_in_pidfd():
        pytest.skip("needs Linux 6.15, whose pidfds keep the exit status")
    report = tmp_path / "report.json"
    with loaded(0) as process, attached(process.pid, report, tracer=tracer) as session:
        if number:
            process.send_signal(number)
        else:
            process.stdin.write(b"q")
            process.stdin.flush()
        if reaped:
            assert process.wait(60) == -number
        assert session.wait(60) == 0
        assert session.stdout is not None and f"; the program {text}\n" in session.stdout.read()
    assert json.loads(report.read_text())["target"]["exit_status"] == number


def has_exit_in_pidfd() -> bool:
    """PIDFD_GET_INFO with PIDFD_INFO_EXIT (include/uapi/linux/pidfd.h)."""
    with subprocess.Popen(["true"]) as child:
        pidfd = os.pidfd_open(child.pid)
    info = bytearray(struct.pack("<Q56x", 1 << 3))
    try:
        fcntl.ioctl(pidfd, 0xC040FF0B, info)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return bool(struct.unpack_from("<Q", info)[0] & 1 << 3)


RESTARTED = ["nanosleep", "clock_nanosleep", "poll", "select", "futex"]
# The kernel ends these with EINTR at every stop of a debugger (signal(7)); on arm64 it has lost their first argument by then.
SHORTENED = ["epoll", "epoll_pwait2"]
REPEATED = [*SHORTENED, "semop", "sigtimedwait", "getevents", "uring", "accept", "recv", "read", "all"]


@pytest.mark.parametrize("wait", RESTARTED + REPEATED if platform.machine() == "x86_64" else RESTARTED)
def test_it_is_not_interrupted(wait: str) -> None:
    """The thread that makes our calls waits on as if nothing had been: no system call of its own ends with EINTR."""
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


@pytest.mark.parametrize("wait", ["epoll", "semop", "sigtimedwait", "recv"])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="such waits stay ended elsewhere")
def test_signals_that_are_ignored_do_not_interrupt_it(wait: str) -> None:
    with started(built(PROGRAMS / "interrupted_waits"), wait) as process:
        with ignored_signals(process):
            assert not attach(process.pid).error
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize("wait", [*SHORTENED, "sigtimedwait", "poll"])
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


def test_strict_mode_in_which_the_cycle_counter_ends_a_process() -> None:
    with loaded(0) as process:
        found = attach(process.pid, lambda: order(process, b"s"))
        assert (process.wait(60), found.sizes[5003]) == (0, 23)
