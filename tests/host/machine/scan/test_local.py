"""The look into a process: it is let go as it was, whatever hinders."""

import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.scan import local
from memleak_android.host.machine.scan.local import scan_memory
from tests.support.attaching import until
from tests.support.running_program import blocked, wait_until_asleep
from tests.support.workloads import built

NO_BLOCKS = np.empty(0, np.uint64)


def tracers(pid: int) -> set[str]:
    """Of its threads."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return {match for text in statuses for match in re.findall(r"^TracerPid:\t(\d+)", text, re.MULTILINE)}


def test_process_goes_on():
    with blocked(["/bin/cat"]) as pid:
        scan = scan_memory(pid, NO_BLOCKS)
        assert tracers(pid) == {"0"}
        wait_until_asleep(pid)  # it wakes up from the stop, and goes to sleep again
        assert scan.n_threads == 1
        heap = next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "[heap]" in line)
        low, high = (int(word, 16) for word in heap.split()[0].split("-"))
        assert [low, high] in scan.allocator.tolist()
        assert ((scan.value >= low) & (scan.value < high)).any()
        assert 4096 < scan.scanned_bytes < 4 << 20  # of 8 MiB of stack that may be used only what is


def test_thread_that_does_not_stop(monkeypatch: pytest.MonkeyPatch):
    """A thread that has not stopped on request is released when the requesting thread ends."""
    monkeypatch.setattr(local, "_DEADLINE_S", 0.2)
    with subprocess.Popen([built("vfork_waits")], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(1) == b"w"
            with pytest.raises(TargetError, match="did not stop within"):
                scan_memory(process.pid, NO_BLOCKS)
            # Python has joined a thread before the kernel has
            assert until(lambda: tracers(process.pid) == {"0"})
        finally:
            child = Path(f"/proc/{process.pid}/task").glob("*/children")
            for pid in " ".join(path.read_text() for path in child).split():
                os.kill(int(pid), signal.SIGKILL)
            process.kill()
