"""Refused attaches: one line that names the way out, and the target runs on unchanged."""

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.process import check_status
from memleak_android.host.machine.parse import parse_status
from memleak_android.host.tracers.inline.target import mapped_file
from tests.support.attached_session import attach, contents_of, layout_of, started, workload
from tests.support.injection import compiled, inject, last_words, library, running
from tests.support.program_server import run_program
from tests.support.workloads import without_calls

pytestmark = pytest.mark.compares_code

INCOMPLETE, TARGET = 6, 4
NO_PTRACE = "101:1"  # of x86_64, EPERM
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
# Another user, who may still read our files: their location is not tested here.
OTHER_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
READS_FILES = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
UNHARMED = "unharmed, 0 signals"
both_hooks = pytest.mark.parametrize("hook", ["plt", "inline"])


def refusal(pid: int, hook: str, *words: str, before: Sequence[str | Path] = (), code: int = TARGET) -> str:
    """The one line that our program says; the process is afterwards as it was: code, slots, layout, tracer."""
    state = layout_of(pid), contents_of(pid)
    argv = ["--tracer", hook, "--pid", str(pid), "--duration", "20s", *words]
    environment = {**os.environ, "XDG_CACHE_HOME": "/dev/null/no-folder"}
    done = run_program(argv, env=environment, timeout_s=60, before=before)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert (layout_of(pid), contents_of(pid)) == state
    assert "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text()
    return line.removeprefix("memleak-android: error: ").replace(str(pid), "PID")


def need_root() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs root and setpriv")


@both_hooks
def test_a_process_that_does_not_let_itself_be_looked_at(hook: str) -> None:
    need_root()
    with running("undumpable", before=OTHER_USER) as (process, _):
        said = refusal(process.pid, hook, before=[*OTHER_USER, *READS_FILES])
        assert said.endswith(
            " may not be traced: it is not dumpable (set-user-ID, or prctl(PR_SET_DUMPABLE)); run as root"
        )
        assert last_words(process) == UNHARMED


def test_the_agent_says_so_too() -> None:
    """Of what the host has not looked at: it is the agent that acts as an app on a phone."""
    need_root()
    with running("undumpable", before=OTHER_USER) as (process, _):
        refused = inject(process.pid, library(), "length_of", "x", before=OTHER_USER)
        assert "is not dumpable: set-user-ID, or prctl(PR_SET_DUMPABLE)" in refused.refusal
        assert last_words(process) == UNHARMED
    with running("threads") as (process, _):
        refused = inject(process.pid, library(), "length_of", "x", before=OTHER_USER)
        assert f"process {process.pid} belongs to user 0 (run as that user, or as root)" in refused.refusal
        assert last_words(process) == UNHARMED


def test_ptrace_that_a_filter_forbids() -> None:
    with running("threads") as (process, _):
        said = refusal(process.pid, "plt", before=[without_calls(), NO_PTRACE, "--"])
        assert said == (
            "the kernel does not allow tracing process PID: ptrace is not permitted here, in a container maybe; run as root"
        )
        assert last_words(process) == UNHARMED


@pytest.mark.skipif(
    not YAMA.exists(),
    reason="this kernel has no yama; the emulator's has (tests/emulator/test_attach_refused.py)",
)
@both_hooks
def test_yama(hook: str) -> None:
    need_root()
    before = YAMA.read_text()
    YAMA.write_text("1")
    try:
        with running("threads", before=OTHER_USER) as (process, _):
            said = refusal(process.pid, hook, before=[*OTHER_USER, *READS_FILES])
            assert "kernel.yama.ptrace_scope is 1, which forbids attaching to process PID" in said
            assert last_words(process) == UNHARMED
    finally:
        YAMA.write_text(before)


@pytest.mark.parametrize(("debugger", "hook"), [("gdb", "plt"), ("strace", "inline")])
def test_another_debugger(debugger: str, hook: str) -> None:
    if shutil.which(debugger) is None:
        pytest.skip(f"{debugger} is not installed")
    with running("threads", "1", "interrupted") as (process, _):
        words = {"gdb": ["-nx", "-q", "-p"], "strace": ["-f", "-o", "/dev/null", "-p"]}[debugger]
        other = subprocess.Popen(
            [debugger, *words, str(process.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while "TracerPid:\t0\n" in (status := Path(f"/proc/{process.pid}/status").read_text()):
            time.sleep(0.02)
        tracer = status.split("TracerPid:\t")[1].split("\n")[0]
        done = run_program(["--tracer", hook, "--pid", str(process.pid)])
        line = f"process {process.pid} is traced by process {tracer}, a debugger maybe; end that first"
        assert (done.returncode, done.stderr) == (TARGET, f"memleak-android: error: {line}\n")
        other.kill()
        other.communicate()
        assert last_words(process) == UNHARMED


@pytest.mark.parametrize(
    ("mode", "hook", "said"),
    [
        ("filter", "plt", "has a seccomp filter, which may kill it for the system calls that load a library"),
        ("strict", "inline", "is in seccomp's strict mode: the kernel would kill it"),
    ],
)
def test_seccomp(mode: str, hook: str, said: str) -> None:
    with running(mode) as (process, _):
        assert refusal(process.pid, hook) == f"process PID {said}; use --tracer bpf"
        assert last_words(process) == UNHARMED


@both_hooks
def test_a_process_that_can_open_no_more_files(hook: str) -> None:
    with started(workload(), "load", "0") as process:
        for limit in (3, 4):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, 100))
            assert refusal(process.pid, hook) == (
                f"process PID has 3 of at most {limit} files open, and attaching takes 2 more for a moment;"
                f" raise its limit: prlimit --pid PID --nofile={limit + 16}, or use --tracer bpf"
            )
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (5, 100))
        assert not attach(process.pid).error


@pytest.mark.parametrize("function", ["leave", "become"])
def test_a_target_that_ends_or_becomes_another_program_meanwhile(function: str) -> None:
    """In the midst of the call: what it becomes runs on."""
    with running("threads") as (process, _):
        refused = inject(process.pid, library(), function, str(workload()))
        assert (
            refused.refusal
            == f"process {process.pid} has ended or become another program meanwhile (try again)"
        )
        if function == "leave":
            assert process.wait(timeout=20) == 7
            return
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert inject(process.pid, library(), "length_of", "xyz").result == 3
        assert last_words(process) == UNHARMED


def test_a_target_that_ends_at_any_step() -> None:
    """A process that ends loses its memory first. The reason stays that it has ended."""
    host = "ended while it was attached to"
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        said = attach(zombie.pid, hook="inline", hook_lines=["slot 1000 0"]).error
        status = parse_status(Path(f"/proc/{zombie.pid}/status").read_text())
    assert said == f"process {zombie.pid} has ended (name another one)"
    with pytest.raises(TargetError, match=rf"^process 7 \(true\) {host}$"):
        check_status(7, replace(status, state="R", tgid=7))
    with pytest.raises(TargetError, match=f"^process 7 {host}$"):
        mapped_file(MagicMock(pid=7, **{"mappings.return_value": []}), "/lib/libc.so.6", MagicMock())


@both_hooks
def test_a_library_that_is_half_loaded(hook: str, tmp_path: Path) -> None:
    """Its constructor has the linker's lock: no thread is made to wait for it, and once it is done all is well."""
    mark = tmp_path / "half"
    words, environment = ("half", "0", str(library()), str(mark)), {"HALF_LOADED": str(mark)}
    with running(*words, environment=environment) as (process, _):
        assert refusal(process.pid, hook) == (
            "no thread of process PID could be borrowed within 2 s: the last one was suitable, but another one was in the"
            " dynamic linker and may hold its lock; try again, or use --tracer bpf"
        )
        mark.unlink()
        while inject(process.pid, library(), "length_of", "xyz").result != 3:
            time.sleep(0.1)
        assert last_words(process) == UNHARMED


def test_a_function_that_is_shorter_than_a_jump() -> None:
    with started(compiled("stubborn_allocator.c")) as process:
        said = refusal(process.pid, "inline", "--symbols-prefix", "short_")
        assert said == (
            "short_malloc cannot be patched: it is shorter than a jump; "
            "use --tracer bpf, or --tracer plt for calls from other modules"
        )
        assert process.communicate(b"aaax", timeout=20)[0] == b"unharmed, 3\n"


def test_a_child_of_vfork_that_runs_in_the_same_code(tmp_path: Path) -> None:
    """Its parent's thread cannot be stopped, and it would not be: no code is changed under it."""
    with running("vfork of a thread", "1") as (process, _):
        state = layout_of(process.pid), contents_of(process.pid)
        words = ["--tracer", "inline", "--pid", str(process.pid), "--json", "a.json"]
        done = run_program(words, tmp_path)
        assert done.returncode == INCOMPLETE, done.stderr
        note = json.loads((tmp_path / "a.json").read_text())["notes"][0]
        children = Path(f"/proc/{process.pid}/task").glob("*/children")
        (child,) = (int(number) for path in children for number in path.read_text().split())
        begin = f"process {child}, a child of vfork(), runs in the memory of process {process.pid}, "
        assert note.startswith(begin), note
        assert (layout_of(process.pid), contents_of(process.pid)) == state
        assert last_words(process) == UNHARMED
