"""CPU time of others."""

import os
import subprocess
import sys
import time

from bench.clocks import children_cpu_s, task_cpu_ns

BUSY = "import time\nwhile time.process_time() < 0.2: pass\n"


def test_children_are_counted_with_their_own_children() -> None:
    before = children_cpu_s()
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    subprocess.run([sys.executable, "-c", inner], check=True)
    assert children_cpu_s() - before > 0.2


def test_a_running_process_is_counted_in_nanoseconds() -> None:
    before = task_cpu_ns(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    time.sleep(0.01)  # the scheduler adds up when a thread leaves its processor, or at a tick
    assert 40_000_000 < task_cpu_ns(os.getpid()) - before < 60_000_000_000
