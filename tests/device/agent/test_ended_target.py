"""How the attached process ended is in the report, though it is nobody's child here."""

import fcntl
import json
import os
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.attached_session import loaded
from tests.support.attaching import attached

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
