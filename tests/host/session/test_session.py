"""How often a session asks for snapshots on its own, its progress, and children that it does not measure."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memleak_android.host.analysis.growth_trend import INSTANTS_MIN
from memleak_android.host.analysis.pipeline import View
from memleak_android.host.heap.capture import Capture
from memleak_android.host.recording.read import read_profile
from memleak_android.host.session import progress
from memleak_android.host.session.session import safety_interval_ns
from memleak_android.host.session.unmeasured_children import (
    UnmeasuredChildren,
    _ancestors,
    _began_as_ours,
    _goes_on,
    _lineage,
)
from tests.support.builders.large_recording import write
from tests.support.workloads import both_tracers, build, run

SECOND = 10**9


def instants(seconds: int, snapshot_bytes: int) -> list[float]:
    at_ns, found = 0, []
    while (at_ns := at_ns + safety_interval_ns(at_ns, snapshot_bytes)) < seconds * SECOND:
        found.append(at_ns / SECOND)
    return found


@pytest.mark.parametrize("snapshot_bytes", [0, 7 << 20, 4 << 30])
def test_eight_seconds_are_judged(snapshot_bytes: int) -> None:
    assert len(instants(8, snapshot_bytes)) > INSTANTS_MIN


def test_large_tables_are_sent_less_often() -> None:
    assert len(instants(600, 1 << 30)) < len(instants(600, 0)) / 2
    assert (
        max(b - a for a, b in zip((0.0, *instants(3600, 1 << 40)), instants(3600, 1 << 40), strict=False))
        <= 30
    )


def test_steps_and_shares_of_a_recording(tmp_path: Path) -> None:
    write(tmp_path / "a.memleak", 20_000, 10_000)
    steps: list[tuple[str, float]] = []
    read_profile(tmp_path / "a.memleak", View(), progress=lambda what, share: steps.append((what, share)))
    assert list(dict.fromkeys(what for what, _ in steps)) == ["reading", "summing up", "naming stacks"]
    for step in ("reading", "naming stacks"):
        shares = [share for what, share in steps if what == step]
        assert len(shares) >= 3 and shares == sorted(shares) and shares[0] < 0.1 and 0.5 < shares[-1] <= 1


def test_without_a_terminal_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.StepProgress() as shown:
        for seconds in range(25):
            now[0] = 100.0 + seconds
            shown.update("reading", seconds / 25)
    assert capsys.readouterr().err.splitlines() == [
        "memleak-android: reading: 40%",
        "memleak-android: reading: 80%",
    ]


HOLDS = "import sys; kept = bytearray(b'x') * (%d << 20); print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("megabytes", "is_attached", "least"), [(60, False, 2), (60, True, INSTANTS_MIN), (0, False, 7)]
)
def test_the_largest_child_is_named(megabytes: int, is_attached: bool, least: int) -> None:
    """In a parent of some 20 MiB. A running one may fork to save what it holds, as redis does."""
    parent = f"import subprocess, sys; kept = bytearray(b'x') * (20 << 20); subprocess.run([sys.executable, '-S', '-c', {HOLDS % megabytes!r}])"
    capture = Capture()
    observer = UnmeasuredChildren(capture)
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as target:
        assert target.stdout is not None and target.stdout.readline() == b"\n"
        capture.session |= {"pid": target.pid, "attached": is_attached}
        for snapshot in range(1, 7):
            observer.snapshot_arrived()
            assert bool(capture.session.findings.left_out) == (snapshot >= least)
        target.communicate(b"")
    observer.snapshot_arrived()  # of processes that have ended
    assert all("--follow" in text for text in capture.session.findings.left_out)


DETACHES = """
import os, time
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
os.closerange(0, 3)
time.sleep(60)
"""


# Ends before anything is seen of it.
AT_ONCE = "int main(void) { if (fork()) _exit(0); setsid(); close(0); close(1); close(2); sleep(60); }"


@pytest.mark.parametrize("is_at_once", [False, True])
@both_tracers
def test_a_program_that_goes_on_as_a_daemon(tracer: str, is_at_once: bool, tmp_path: Path) -> None:
    command = ["--", sys.executable, "-S", "-E", "-c", DETACHES]
    if is_at_once:
        source = tmp_path / "daemon.c"
        source.write_text(f"#include <unistd.h>\n{AT_ONCE}\n")
        command = ["--", str(build(source, tmp_path, output="daemon"))]
    found = run(tracer, tmp_path, *command, codes=[6]).report["answer"]
    daemon = re.fullmatch(r"its child process (\d+) goes on unmeasured: .*--follow.*", found["why"])
    assert found["state"] == "cannot_tell" and daemon, found
    os.kill(int(daemon[1]), signal.SIGKILL)


# As the compilers of Erlang and .NET do. The file is gone when the program has ended.
COMPILES = """
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    int file = memfd_create("code", 0);
    ftruncate(file, 4096);
    return mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0) == MAP_FAILED;
}
"""


def test_code_of_a_compiler_in_memory_brings_no_malloc(tmp_path: Path) -> None:
    source = tmp_path / "compiles.c"
    source.write_text(COMPILES)
    done = run("bpf", tmp_path, "--", build(source, tmp_path, output="compiles"), codes=(0, 6))
    (programs,) = (each for each in done.report["coverage"] if each["condition"] == "programs")
    assert programs["answer"] == "yes"


def test_another_s_start_of_the_program_is_no_daemon_of_ours() -> None:
    for environment, is_ours in (os.environ, True), ({**os.environ, "PATH": "/bin"}, False):
        with subprocess.Popen(["/bin/sleep", "60"], env=environment) as process:
            while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
                time.sleep(0.001)
            assert _began_as_ours(process.pid) is is_ours
            process.kill()


def test_another_session_s_target_is_no_daemon_of_ours() -> None:
    """Its parent, the tracer, began before our session and it meanwhile. Only our own ancestors are given orphans."""
    with subprocess.Popen(
        ["/bin/sh", "-c", "read x; setsid sleep 60 & echo $!; wait"], stdin=-1, stdout=-1
    ) as tracer:
        while (since_s := time.clock_gettime(time.CLOCK_BOOTTIME)) < _lineage(tracer.pid)[3] + 0.02:
            time.sleep(0.01)
        tracer.stdin.write(b"\n")
        tracer.stdin.flush()
        target = int(tracer.stdout.readline())
        while Path(f"/proc/{target}/comm").read_text() != "sleep\n":
            time.sleep(0.001)
        for adopting, goes_on in ({tracer.pid}, True), ({1, *_ancestors(os.getpid())}, False):
            assert _goes_on(target, {os.path.realpath("/bin/sleep")}, since_s, adopting) is goes_on
        os.kill(target, signal.SIGKILL)
