"""`--reachability` on a command that ends by itself: it is held at its end, whichever way it ends, and its end is its own."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.attaching import until
from tests.support.program_server import start_program
from tests.support.workloads import both_tracers, built, need, run

ENDS = {
    "returns": "exited with status 7",
    "execs": "exited with status 7",
    "forks": "exited with status 7",
    "thread-exits": "exited with status 7",
    "first-thread-ends": "exited with status 0",
    "aborts": "was killed by signal 6",
    "killed": "was killed by signal 9",
}


@both_tracers
@pytest.mark.parametrize("way", ENDS)
def test_each_kind_of_end(tracer: str, way: str, tmp_path: Path) -> None:
    # On a busy machine the last thread outlives the first by more than a quarter of a second: BPF reports that.
    may_outlive = (tracer, way) == ("bpf", "first-thread-ends")
    codes = [0, 6] if may_outlive else [0]
    done = run(
        tracer, tmp_path, "--", built("ways_to_end"), way, options=["--reachability", "-v"], codes=codes
    )
    assert done.report["totals"]["lost"] == {} or "after its first thread exited" in done.err
    assert done.report["leaks"]["definitely_lost"] == {"objects": 1, "space": 4001}
    assert ENDS[way] in done.err
    assert "the command was held at its end for" in done.err


def test_a_thread_begins_another_program(tmp_path: Path) -> None:
    """All other threads end before: that of the first is no end of the command."""
    done = run("preload", tmp_path, "--", built("ways_to_end"), "thread-execs", options=["--reachability"])
    assert done.report["leaks"]["definitely_lost"] == {"objects": 1, "space": 4001}
    assert ENDS["returns"] in done.err


def test_what_cannot_be_started_says_so(tmp_path: Path) -> None:
    program = tmp_path / "no_program"
    program.write_bytes(b"\0" * 100)
    program.chmod(0o755)
    done = run("preload", tmp_path, "--", program, options=["--reachability"], codes=(4, 5))
    assert "definitely" not in done.err


def _state(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            yield child
            yield from _descendants(child)


def _running(pid: int) -> dict[str, int]:
    """Descendants by the names of their programs: of several the outermost, as the agent beside its reader."""
    found = {}
    for one in _descendants(pid):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            found.setdefault(os.path.basename(os.readlink(f"/proc/{one}/exe")), one)
    return found


def _started(
    tracer: str, folder: Path, *command: str | Path, options: Sequence[str] = ()
) -> tuple[subprocess.Popen[str], int, int]:
    """The measurement, its agent, and the command once it runs."""
    need(tracer)
    words = ["-v", "--tracer", tracer, "--reachability", *options, "--", *command]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = start_program(words, cwd=folder, text=True, start_new_session=True, **streams)
    while process.poll() is None:
        names = _running(process.pid)
        if Path(command[0]).name in names:
            return process, names["memleakd"], names[Path(command[0]).name]
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0])


def test_a_stop_of_job_control_stays_one(tmp_path: Path) -> None:
    process, _, pid = _started("preload", tmp_path, built("ways_to_end"), "stops")
    with process:
        assert until(lambda: int(_state(pid)["TracerPid"]) != 0 and "t (" in _state(pid)["State"])
        time.sleep(0.5)  # in which a process that was let go would go on
        assert not (tmp_path / "went-on").exists()
        os.kill(pid, signal.SIGCONT)
        out, _ = process.communicate()
    assert (tmp_path / "went-on").exists()
    assert "definitely lost 4,001 bytes" in out
    assert ENDS["returns"] in out


@both_tracers
def test_it_goes_on_without_the_agent(tracer: str, tmp_path: Path) -> None:
    process, agent, pid = _started(tracer, tmp_path, built("reachable_blocks", "-O0"), "600")
    with process:
        assert int(_state(pid)["TracerPid"])
        os.kill(agent, signal.SIGKILL)
        process.communicate()
        try:
            assert _state(pid)["State"].startswith("S")
            assert int(_state(pid)["TracerPid"]) == 0
        finally:
            os.kill(pid, signal.SIGKILL)


@both_tracers
def test_the_terminals_interrupt_ends_it(tracer: str, tmp_path: Path) -> None:
    """The signal also kills the command: the report says so, and its memory is scanned before."""
    process, _, _ = _started(tracer, tmp_path, built("ways_to_end"), "waits-", options=["--interval", "1s"])
    with process:
        while "outstanding" not in (line := process.stdout.readline()):  # the first instant's
            assert line, "the measurement ended"
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate()
    assert "was killed by signal 2" in out
    assert "definitely lost 4,001 bytes in 1 allocation" in out
