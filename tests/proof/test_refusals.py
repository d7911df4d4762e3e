"""Targets that cannot be measured and rights that are missing: one clear line each; and no probe stays behind."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.attaching import (
    BREAKPOINT,
    agents_of,
    attached,
    changed_code,
    interrupt,
    until_ended,
    until_unchanged,
    waiting,
)
from tests.support.program_server import run_program
from tests.support.workloads import both_tracers, build, built, functions, need, run

pytestmark = pytest.mark.compares_code

ABORTED, TARGET, TRACER, INCOMPLETE = 130, 4, 5, 6
NO_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
NO_PTRACE = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
OTHER_USER = 65534
LIBC = Path("/usr/lib/x86_64-linux-gnu/libc.so.6")


def outcome(*words: str | Path | int, before: tuple[str, ...] | list[str] = ()) -> tuple[int, str, str]:
    """Exit code, the error line ("" = none), and all of stderr, of our program run behind `before`."""
    done = run_program(list(map(str, words)), timeout_s=60, before=before)
    lines = [line for line in done.stderr.splitlines() if line.startswith("memleak-android: error: ")]
    assert len(lines) <= 1 and "Traceback" not in done.stderr, done.stderr
    return done.returncode, "".join(lines), done.stderr


def need_setpriv() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("taking rights away needs root and setpriv")


# ---- targets ----


def test_static_program_that_has_symbols(tmp_path: Path) -> None:
    program = build("plain_leak", tmp_path, "-static", output="alone")
    found = run("bpf", tmp_path, "--", program, "7", "11")
    assert found.amounts() == (77, 7)
    (site,) = found.sites()
    assert functions(site)[:3] == ["malloc", "hold", "main"] and site["end"] == "ROOT"
    code, line, _ = outcome("--tracer", "preload", "--", program, 7, 11)
    assert code == TRACER and "linked statically" in line and "--tracer bpf" in line


def test_static_process_that_has_symbols(tmp_path: Path) -> None:
    program = build("leaks_when_told", tmp_path, "-static", output="alone")
    report = tmp_path / "report.json"
    with waiting([program], "alone") as (process, pid), attached(pid, report) as session:
        process.communicate(b"x" * 3)
        out, err = session.communicate(timeout=60)
    assert session.returncode == 0 and "holds 3.0 KiB in 3 blocks" in out, err


@both_tracers
def test_static_program_without_symbols(tracer: str, tmp_path: Path) -> None:
    program = build("plain_leak", tmp_path, "-static", "-s", output="bare")
    need(tracer)
    code, line, _ = outcome("--tracer", tracer, "--", program, 7, 11)
    assert code == (TARGET if tracer == "bpf" else TRACER) and "bare" in line
    if tracer == "bpf":
        assert "no function malloc found in" in line and "not stripped" in line
    else:
        assert "linked statically" in line


@both_tracers
def test_stripped_libc_is_enough(tracer: str, tmp_path: Path) -> None:
    """Its .dynsym names malloc, its .eh_frame unwinds."""
    libc = tmp_path / "libc.so.6"
    words: list[str | Path] = ["strip", "--strip-all", "-o", libc, LIBC]
    if shutil.which("strip") is None or subprocess.run(words, check=False).returncode:
        pytest.skip("strip (binutils) is not there, or cannot strip libc")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    found = run(tracer, tmp_path, "--", built("plain_leak"), "7", "11", environment=environment)
    assert found.amounts() == (77, 7)
    (site,) = found.sites()
    assert functions(site)[:3] == ["malloc", "hold", "main"] and site["end"] == "ROOT"


# ---- rights ----


def test_bpf_is_asked_for_and_not_allowed() -> None:
    need_setpriv()
    code, line, _ = outcome("--tracer", "bpf", "--", "/usr/bin/true", before=NO_CAPABILITIES)
    assert code == TRACER and "BPF programs may not be loaded (Operation not permitted)" in line
    assert "run as root" in line and "--tracer preload" in line


@pytest.mark.parametrize(
    ("tracer", "exit_code", "way_out"),
    [("auto", TARGET, "run as root"), ("bpf", TRACER, "run as root"), ("preload", TRACER, "-- CMD")],
)
def test_process_without_bpf(tracer: str, exit_code: int, way_out: str) -> None:
    """Nothing else may attach either; and nothing is begun."""
    need_setpriv()
    with waiting([built("waits")], built("waits").name[:15]) as (_, pid):
        code, line, _ = outcome("--tracer", tracer, "--pid", pid, before=NO_CAPABILITIES)
        assert until_unchanged(pid) == {}  # others may trace the whole machine meanwhile
    assert code == exit_code and str(pid) in line and way_out in line


def test_command_without_bpf_falls_to_the_shim(tmp_path: Path) -> None:
    need_setpriv()
    report = tmp_path / "report.json"
    words = ("--json", report, "--", built("plain_leak"), 7, 11)
    code, _, err = outcome(*words, before=NO_CAPABILITIES)
    assert code == 0 and "measuring by preload: BPF programs may not be loaded" in err
    assert '"inuse_space":77,' in report.read_text().replace(" ", "")


def test_process_of_another_user() -> None:
    """BPF is allowed, but not a look at others' memory."""
    need_setpriv()
    need("bpf")
    program = built("waits")
    rights = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": []}
    with waiting([program], program.name[:15], **rights) as (_, pid):
        code, line, _ = outcome("--pid", pid, before=NO_PTRACE)
    assert code == TARGET and f"it belongs to uid {OTHER_USER}" in line and "run as root" in line


# ---- endings ----


ENDINGS = {  # and what our program returns
    "interrupt": (0,),
    "killed host": (-signal.SIGKILL,),
    "killed agent": (TRACER, INCOMPLETE),
    "second interrupt": (ABORTED,),
    "termination": (0, -signal.SIGTERM, 128 + signal.SIGTERM, ABORTED),
}


def end(how: str, session: subprocess.Popen[str], agent: int) -> None:
    if how == "killed agent":
        os.kill(agent, signal.SIGKILL)
    elif how == "second interrupt":  # the agent does not answer the first
        os.kill(agent, signal.SIGSTOP)
        interrupt(session)
        assert session.poll() is None
        session.send_signal(signal.SIGINT)
    else:
        numbers = {"interrupt": signal.SIGINT, "killed host": signal.SIGKILL, "termination": signal.SIGTERM}
        session.send_signal(numbers[how])


@pytest.mark.proof
@pytest.mark.parametrize("how", ENDINGS)
def test_no_probe_is_left(how: str, tmp_path: Path) -> None:
    """The target's code, read back byte by byte: as its files say again; and it goes on."""
    program = build("leaks_when_told", tmp_path, output="program")
    with waiting([program], "program") as (process, pid):
        assert until_unchanged(pid) == {}  # others may trace the whole machine meanwhile
        with attached(pid, tmp_path / "report.json") as session:
            (agent,) = agents_of(session.pid)
            planted = changed_code(pid)
            assert planted and set(planted.values()) == {BREAKPOINT}
            end(how, session, agent)
            _, err = session.communicate(timeout=60)
            assert session.returncode in ENDINGS[how], err
        assert until_unchanged(pid) == {}
        assert until_ended(agent)
        process.communicate(b"xxx")
        assert process.returncode == 0


@both_tracers
def test_no_probe_is_left_of_a_command(tracer: str, tmp_path: Path) -> None:
    """A program that starts afterwards finds the library as its file is: uprobes belong to the inode."""
    run(tracer, tmp_path, "--", built("plain_leak"), "7", "11")
    with waiting([built("waits")], built("waits").name[:15]) as (_, pid):
        assert until_unchanged(pid) == {}  # others may trace the whole machine meanwhile


def test_process_that_ended_and_is_not_waited_for(tmp_path: Path) -> None:
    """A zombie has ended, however long its parent leaves it lying."""
    program = build("leaks_when_told", tmp_path, output="program")
    with waiting([program], "program") as (process, pid), attached(pid, tmp_path / "r.json") as session:
        process.stdin.write(b"xx")
        process.stdin.flush()
        os.kill(pid, signal.SIGKILL)
        session.communicate(timeout=60)
        assert session.returncode == 0
