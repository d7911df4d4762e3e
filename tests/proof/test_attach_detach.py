"""Attached to and detached from a hundred times under full allocation load, and programs of distributions."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attached_session import Attached, contents_of, layout_of, leak, loaded
from tests.support.attaching import until
from tests.support.injection import inject, library
from tests.support.inline_session import WAYS, own_allocator_program

pytestmark = [pytest.mark.proof, pytest.mark.compares_code]

HELD, VALUE = 23, 5000
BLOCK = (
    VALUE + 5 + 1
)  # a string of redis (sds.h) of 256 bytes and more has a header of 5 bytes and a final zero
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
def listening(argv: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has said that it is ready, or listens."""
    process = subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        line = process.stdout.readline()
        if not line:
            pytest.skip(f"{argv[0]} does not run here")
        time.sleep(0.3)
        yield process
    finally:
        process.kill()
        process.communicate()


def again_and_again(
    way: str, pid: int, times: int, meanwhile: Callable[[], object], may_lose: bool = False
) -> Iterator[Attached]:
    """Every session, after it was seen that it left code, slots and protections as they were."""
    before, layout = contents_of(pid), layout_of(pid)
    for number in range(times):
        found = WAYS[way](pid, meanwhile)
        assert found.error == "" and (may_lose or not found.lost), (number, found)
        assert contents_of(pid) == before, (number, found.remarks)
        assert layout_of(pid) == layout, number
        yield found


@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_times_under_load_nothing_is_left_and_nothing_is_lost(way: str) -> None:
    under_load = loaded(6) if way == "plt" else loaded(6, own_allocator_program("own_allocator"))
    with under_load as process:
        for found in again_and_again(way, process.pid, 100, lambda: leak(process), way == "plt"):
            assert found.sizes[5003] == 23
        leak(process)


@contextmanager
def running(*argv: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(list(map(str, argv)), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("way", WAYS)
def test_redis_holds_what_was_set_while_attached(way: str, tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    path, keys = tmp_path / "socket", list[str]()

    def answers(*lines: str) -> list[str]:
        words, text = ["redis-cli", "-s", path], "\n".join(lines)
        return subprocess.run(words, input=text, capture_output=True, text=True, check=False).stdout.split()

    def set_keys() -> None:
        new = [f"held:{len(keys) + i}" for i in range(HELD)]
        assert answers(*(f"SET {key} {'x' * VALUE}" for key in new)) == ["OK"] * HELD
        keys.extend(new)

    options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", tmp_path]
    load = ["redis-benchmark", "-s", path, "-t", "set,get,lpush,lpop", "-r", "1000", "-n", "1000000000", "-q"]
    with running("redis-server", *options) as server:
        assert until(lambda: answers("PING") == ["PONG"])
        with running(*load, "-d", "100") as busy:
            for found in again_and_again(way, server.pid, 20, set_keys):
                assert found.sizes[BLOCK] == HELD
                assert server.poll() is None and busy.poll() is None
            assert answers(*(f"STRLEN {key}" for key in keys)) == [str(VALUE)] * 20 * HELD
    assert server.returncode == 0


def programs(folder: Path) -> Iterator[tuple[str, list[str | Path]]]:
    (folder / "Churn.java").write_text(JAVA)
    yield "python3", [sys.executable, "-c", CHURN]
    yield "node", ["node", "-e", NODE]
    yield "java", ["java", folder / "Churn.java"]


def code_of(pid: int, before: dict[str, str]) -> dict[str, str]:
    """contents_of(), of the mappings that were there before: a virtual machine loads more as it runs."""
    return {line: digest for line, digest in contents_of(pid).items() if line in before}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["python3", "node", "java"])
def test_public_programs(name: str, way: str, tmp_path: Path) -> None:
    argv = dict(programs(tmp_path))[name]
    if shutil.which(str(argv[0])) is None:
        pytest.skip(f"{argv[0]} is not installed")
    sessions = []
    with listening(argv) as process:
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


BECOMES_ITSELF = """
import os, sys, time
count = int(sys.argv[1])
print(count, flush=True)
time.sleep(0.02)
os.execv(sys.executable, [sys.executable, sys.argv[2], str(count + 1), sys.argv[2]])
"""


def test_a_program_that_becomes_another_all_the_time(tmp_path: Path) -> None:
    script = tmp_path / "becomes.py"
    script.write_text(BECOMES_ITSELF)
    process = subprocess.Popen([sys.executable, script, "0", script], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(40):
            entered = inject(process.pid, library(), "length_of", "x")
            assert entered.refusal or entered.result == 1
            assert "\n" not in entered.refusal
            assert process.poll() is None, entered
        counts = [int(process.stdout.readline()) for _ in range(5)]
        assert counts == list(range(5))
    finally:
        process.kill()
        process.communicate()
