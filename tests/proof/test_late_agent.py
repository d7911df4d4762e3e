"""An agent that gets no CPU while its target runs to the end: nothing of what happened meanwhile is lost.

strace delays it between its last look at what the target did and its question whether the target has ended, or signals
stop it; a busy machine does the same to it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import find_binary
from tests.support.attaching import agents_of, descendant
from tests.support.program_server import start_program
from tests.support.workloads import (
    Run,
    both_following,
    build,
    built,
    functions,
    need,
    plugin,
    run,
)

INCOMPLETE = 6
DELAY_US = 600_000
REST = "sleep 0.2; "  # the agent's first look comes before what follows, and its question after it


def run_past_the_agent(folder: Path, script: str, *options: str) -> Run:
    need("bpf")
    agent = find_binary("memleakd", "x86_64")
    late = folder / "late"
    delay = f"-o /dev/null -e trace=wait4 -e inject=wait4:delay_enter={DELAY_US}"
    late.write_text(f'#!/bin/sh\nexec strace {delay} {agent} "$@"\n')
    late.chmod(0o755)
    if shutil.which("strace") is None or subprocess.run([late, "--version"], check=False).returncode:
        pytest.skip("strace does not run here (apt-get install strace)")
    environment = {**os.environ, "MEMLEAKD": str(late)}
    return run("bpf", folder, "--", "sh", "-c", script, options=options, environment=environment)


def held_by(result: Run, function: str) -> Counter[tuple[str, str]]:
    """Blocks by module and end of the stacks that allocate in this function."""
    found = Counter[tuple[str, str]]()
    for site in result.sites():
        if functions(site)[1:2] == [function]:
            found[Path(site["frames"][1]["module"]).name, site["end"]] += site["inuse_objects"]
    return found


def test_library_opened_before_the_end(tmp_path: Path) -> None:
    library = plugin(tmp_path, "late", 1013)
    script = f"{REST} exec {built('one_after_another')} {library} {library}"
    result = run_past_the_agent(tmp_path, script)
    assert held_by(result, "leak_late") == {("liblate.so", "ROOT"): 6}


@pytest.mark.proof
@pytest.mark.changes_all_code
def test_child_that_outlives_the_command(tmp_path: Path) -> None:
    """It was forked before the agent knew that the command had ended, and is waited for all the same."""
    program = build("many_processes", tmp_path)
    result = run_past_the_agent(tmp_path, f"{REST} (sleep 1; {program}; true) & exit 0", "--follow")
    assert held_by(result, "leak_in_child") == {("many_processes", "ROOT"): 7}


@pytest.fixture(params=["opens a library", pytest.param("becomes another program", marks=pytest.mark.proof)])
def without_first_thread(request: pytest.FixtureRequest, tmp_path: Path) -> list[str | Path]:
    """A command that allocates after its first thread has ended, while another goes on."""
    library = plugin(tmp_path, "late", 1013)
    is_exec = request.param == "becomes another program"
    return [
        built("first_thread_ends"),
        *(["", built("one_after_another"), library] if is_exec else []),
        library,
    ]


@pytest.mark.changes_all_code
def test_first_thread_ends_before_the_process(without_first_thread: list[str | Path], tmp_path: Path) -> None:
    """Its exit is not that of the process: what comes later has its mappings too."""
    result = run("bpf", tmp_path, "--", *without_first_thread, options=["--follow"])
    blocks = 1 if len(without_first_thread) == 2 else 6
    assert held_by(result, "leak_late") == {("liblate.so", "ROOT"): blocks}


def _own_libc(folder: Path) -> Path:
    """A copy: whichever session ends at that moment would take probes of the machine's from the program."""
    words = Path("/proc/self/maps").read_text().split()
    return Path(shutil.copy(next(word for word in words if word.endswith("/libc.so.6")), folder))


def _run_beyond_first_thread(folder: Path, command: Sequence[str | Path], *options: str | Path) -> str:
    """The note that calls were not seen; "" = all were, as the report says."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(_own_libc(folder).parent)}
    result = run(
        "bpf", folder, "--", *command, options=options, environment=environment, codes=[0, INCOMPLETE]
    )
    notes = [note for note in result.report["notes"] if "first thread" in note]
    assert result.totals["lost"] == ({"programs": 1} if notes else {})
    assert (result.code == INCOMPLETE) == bool(notes) and len(notes) <= 1
    held, seen = held_by(result, "leak_late"), {("liblate.so", "ROOT"): 1}
    assert held == seen or (notes and not held)
    return "".join(notes)


def test_links_that_see_calls_after_the_first_thread_lose_nothing(tmp_path: Path) -> None:
    command = [built("first_thread_ends"), plugin(tmp_path, "late", 1013)]
    if _run_beyond_first_thread(tmp_path, command):
        pytest.skip("no links for many uprobes that see all threads (Linux 6.10)")


@pytest.mark.proof
def test_perf_events_that_end_with_the_first_thread_are_reported(
    without_first_thread: list[str | Path], tmp_path: Path
) -> None:
    note = _run_beyond_first_thread(tmp_path, without_first_thread, "--without-multi")
    assert "continued after its first thread exited" in note and "use --follow" in note


@pytest.mark.proof
def test_exec_without_the_first_thread_is_reported(tmp_path: Path) -> None:
    library = plugin(tmp_path, "late", 1013)
    command = [built("first_thread_ends"), "", built("one_after_another"), library, library]
    assert "called exec on another than its first thread" in _run_beyond_first_thread(tmp_path, command)


MAPS_LATE = """
import ctypes, mmap, os, sys, threading, time
def go_on():
    while open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)
    mapped = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    time.sleep(1)
    os._exit(0)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2) of x86_64: of the thread
"""


@pytest.mark.proof
def test_code_that_is_mapped_after_the_first_thread_is_reported(tmp_path: Path) -> None:
    """No probe reaches a second mapping of the C library, as dlmopen() makes one."""
    libc = _own_libc(tmp_path)
    command = ["--", sys.executable, "-S", "-E", "-c", MAPS_LATE, libc]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libc.parent)}
    result = run("bpf", tmp_path, *command, environment=environment, codes=[INCOMPLETE])
    assert result.totals["lost"] == {"programs": 1}
    assert "mapped traced code after its first thread exited" in result.err


def agent_of(session: subprocess.Popen[bytes]) -> int:
    """Of a session whose command has begun."""
    while session.poll() is None:
        for agent in agents_of(session.pid):
            with contextlib.suppress(AssertionError, FileNotFoundError):
                descendant(agent, "many_processes")
                return agent
        time.sleep(0.01)
    raise AssertionError("the session ended early")


@both_following
def test_agent_that_is_stopped_again_and_again(tracer: str, tmp_path: Path) -> None:
    """Ctrl-Z and fg; calls that wait with a time limit come back interrupted then: signal(7)."""
    need(tracer)
    program, report = build("many_processes", tmp_path), tmp_path / "report.json"
    words = ["--tracer", tracer, "--json", report, "--follow", "--", program, 30]
    with start_program(words, stdout=subprocess.DEVNULL) as session:
        agent = agent_of(session)
        while session.poll() is None:
            for number, pause_s in ((signal.SIGSTOP, 0.01), (signal.SIGCONT, 0.001)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(agent, number)
                time.sleep(pause_s)
    assert session.returncode == 0
    result = Run(0, "", "", json.loads(report.read_text()))
    assert held_by(result, "leak_in_child") == {("many_processes", "ROOT"): 210}
