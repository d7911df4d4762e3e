"""How the attached process ended is in the report, though it is nobody's child here."""

import fcntl
import json
import os
import platform
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.attached_session import attach, loaded, started
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
REPEATED = ["epoll", "semop", "accept", "recv"]


@pytest.mark.parametrize("wait", RESTARTED + REPEATED if platform.machine() == "x86_64" else RESTARTED)
def test_it_is_not_interrupted(wait: str) -> None:
    """The thread that makes our calls waits on as if nothing had been: no system call of its own ends with EINTR."""
    with started(built(PROGRAMS / "interrupted_waits"), wait) as process:
        assert not attach(process.pid).error
        process.terminate()
        assert process.wait(60) == 0
