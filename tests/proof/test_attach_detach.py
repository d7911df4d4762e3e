"""Attached to and detached from a hundred times under full allocation load, and programs of distributions."""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from memleak_android.host.wire.blocks import Stopped
from tests.support.attached_session import Attached, attach, contents_of, layout_of, leak, loaded
from tests.support.inline_session import attach_inline

pytestmark = [pytest.mark.proof, pytest.mark.compares_code]

TIMES = 100
WAYS = {"plt": attach, "inline": attach_inline}
PYTHON_SIZES = range(633, 1333)  # bytes objects of CHURN, with their heads

CHURN = """
import sys, threading
def churn():
    while True:
        kept = [bytes(600 + i % 700) for i in range(500)]
threads = [threading.Thread(target=churn, daemon=True) for _ in range(3)]
for thread in threads: thread.start()
print("ready", flush=True)
sys.stdin.read()
"""
NODE = """
let kept = [];
console.log("ready");
setInterval(() => { kept = []; for (let i = 0; i < 2000; i++) kept.push(Buffer.allocUnsafeSlow(700 + i)); }, 1);
"""
JAVA = """
import java.nio.ByteBuffer;
public class Churn {
    static void churn() {
        ByteBuffer[] kept = new ByteBuffer[64];
        for (int i = 0; ; i++) { kept[i % 64] = ByteBuffer.allocateDirect(600 + i % 700); if (i % 1000 == 0) System.gc(); }
    }
    public static void main(String[] words) throws Exception {
        for (int i = 0; i < 2; i++) { Thread thread = new Thread(Churn::churn); thread.setDaemon(true); thread.start(); }
        System.out.println("ready");
        System.in.read();
    }
}
"""


@contextmanager
def started(argv: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has said that it is ready, or listens."""
    process = subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.skip(f"{argv[0]} does not run here")
        time.sleep(0.3)
        yield process
    finally:
        process.kill()
        process.communicate()


def print_stops(name: str, sessions: Sequence[Attached]) -> None:
    """Median and maximum, for who reads the proof's output with -s."""
    for stopped, what in ((Stopped.ALL, "all threads"), (Stopped.CALLER, "the caller")):
        stops = [ms for each in sessions for ms in each.stops_ms(stopped)]
        print(
            f"{name}: {len(stops)} stops, {what}: median {statistics.median(stops):.3f} ms, max {max(stops):.3f} ms"
        )


def test_a_hundred_times_under_load_nothing_is_left_and_nothing_is_lost() -> None:
    sessions = []
    with loaded(6) as process:
        before, layout = contents_of(process.pid), layout_of(process.pid)
        for number in range(TIMES):
            found = attach(process.pid, lambda: leak(process))
            assert (found.error, found.sizes[5003]) == ("", 23), (number, found)
            assert contents_of(process.pid) == before, (number, found.remarks)
            assert layout_of(process.pid) == layout, number
            sessions.append(found)
        leak(process)
    print_stops("workload", sessions)


def programs(folder: Path) -> Iterator[tuple[str, list[str | Path]]]:
    (folder / "Churn.java").write_text(JAVA)
    yield "python3", [sys.executable, "-c", CHURN]
    yield "/usr/bin/python3", ["/usr/bin/python3", "-c", CHURN]
    yield "node", ["node", "-e", NODE]
    yield "java", ["java", folder / "Churn.java"]


def code_of(pid: int, before: dict[str, str]) -> dict[str, str]:
    """contents_of(), of the mappings that were there before: a virtual machine loads more as it runs."""
    return {line: digest for line, digest in contents_of(pid).items() if line in before}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["python3", "/usr/bin/python3", "node", "java"])
def test_public_programs(name: str, way: str, tmp_path: Path) -> None:
    argv = dict(programs(tmp_path))[name]
    if shutil.which(str(argv[0])) is None:
        pytest.skip(f"{argv[0]} is not installed")
    sessions = []
    with started(argv) as process:
        before = contents_of(process.pid)
        for number in range(10):
            found = WAYS[way](process.pid, lambda: time.sleep(0.2))
            assert (found.error, found.lost) == ("", 0), (number, found)
            assert process.poll() is None, number
            after = code_of(process.pid, before)
            assert after == {line: before[line] for line in after}, (number, found.remarks)
            sessions.append(found)
        assert any(found.sizes for found in sessions)
        if "python" in name:
            for found in sessions:  # each thread holds the last list of 500, and what there is of the next
                assert 3 * 499 <= sum(found.sizes[size] for size in PYTHON_SIZES) <= 3 * 1001, found.sizes
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    print_stops(f"{name}, {way}", sessions)
