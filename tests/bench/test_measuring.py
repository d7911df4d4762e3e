"""The benchmarks' clocks, arithmetic and text, and the program that notes when it makes no progress."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import programs
from bench.clocks import children_cpu_s, task_cpu_ns
from bench.figures import reachability
from bench.figures.attach import Heartbeats
from bench.programs import install
from bench.spread import Spread, crossing, differences, losses, number, ratios, render, spread


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


def test_each_route_once(tmp_path: Path) -> None:
    """Both readers search the same pages, of which most are the heap; each way has a value for each round that counts."""
    (heap,) = reachability.measure(2, install(tmp_path), tmp_path, [2])
    assert {len(values) for values in heap.ms.values()} == {2}
    assert heap.searched_bytes[reachability.AGENT] == heap.searched_bytes[reachability.HERE]
    assert heap.searched_bytes[reachability.HERE] > 2 << 20
    ratio = f"{reachability.AGENT} / {reachability.KEPT}"
    assert len(reachability.as_json([heap])["heaps"][0]["ratios"][ratio]) == 2
    assert ratio in reachability.as_text([heap])
    assert not (tmp_path / "core").exists()


def test_spread_is_not_moved_by_one_disturbed_round() -> None:
    assert Spread.of([3.0, 1.0, 1000.0]) == Spread(3.0, 1.0, 1000.0, 3)


def test_ratios_are_taken_by_pair() -> None:
    # A ratio of the sums would be 2.2: the loud second round must not outweigh the first.
    assert ratios([10.0, 100.0], [1.0, 50.0]) == [10.0, 2.0]


def test_an_added_cost_below_the_noise_gives_infinity() -> None:
    assert ratios([5.0, 5.0], differences([10.0, 9.0], [10.0, 9.5])) == [math.inf, math.inf]


@pytest.mark.parametrize(
    ("points", "crossed"),
    [
        ([(1000.0, 1.00), (10_000.0, 1.02), (100_000.0, 1.06)], pytest.approx(32_500.0)),
        ([(1000.0, 1.2), (2000.0, 1.1)], 1000.0),  # the first point exceeds
        ([(1000.0, 1.0), (2000.0, 1.03)], None),
    ],
)
def test_crossing(points: list[tuple[float, float]], crossed: object) -> None:
    assert crossing(points, 1.03) == crossed


def test_columns_are_aligned() -> None:
    text = render(("", "CPU"), [("floor", "1.5"), ("memleak", "13,000.0")])
    assert text.splitlines() == ["                CPU", "  floor         1.5", "  memleak  13,000.0"]


def test_numbers() -> None:
    assert number(13137.44) == "13,137.4"
    assert number(math.inf) == "∞"
    assert spread([1.0, 2.0, 9.0], 2, "×") == "2.00× (1.00 … 9.00)"


def test_losses_name_their_cause_and_the_worst_round() -> None:
    assert losses([{}, {}]) == "0"
    assert losses([{"ring_full": 3}, {"ring_full": 1200}, {"keys_full": 1}]) == "ring_full 1,200, keys_full 1"
