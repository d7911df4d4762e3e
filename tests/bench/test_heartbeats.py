"""The program that notes when it makes no progress, stopped by job control for a while."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from bench import programs
from bench.heartbeats import Heartbeats


def is_stopped(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((one / "stat").read_text().rpartition(")")[2].split()[0] == "T" for one in tasks)


def test_a_stop_is_seen_as_long_as_it_is_and_not_in_another_span(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc)")
    with Heartbeats(programs.compile_c("heartbeats", tmp_path), tmp_path, 2) as target:
        time.sleep(0.05)
        os.kill(target.pid, signal.SIGSTOP)
        while not is_stopped(target.pid):
            time.sleep(0.001)
        begin_ns = time.monotonic_ns()
        time.sleep(0.2)
        end_ns = time.monotonic_ns()
        os.kill(target.pid, signal.SIGCONT)
        seen = target.silence(begin_ns, end_ns)
        while not seen.longest_one:  # it is noted at its end
            time.sleep(0.01)
            seen = target.silence(begin_ns, end_ns)
        stopped_ms = (end_ns - begin_ns) / 1e6
        assert seen.longest_all >= stopped_ms and seen.longest_one >= stopped_ms
        assert seen.sum_all == pytest.approx(seen.longest_all)
        later_ns = time.monotonic_ns()
        assert target.silence(later_ns, later_ns).longest_all == 0


def test_an_ended_target_gives_no_result(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc)")
    with Heartbeats(programs.compile_c("heartbeats", tmp_path), tmp_path, 1) as target:
        os.kill(target.pid, signal.SIGKILL)
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(RuntimeError, match="ended: -9"):
            target.silence(0, 1)
