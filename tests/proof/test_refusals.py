"""Targets that cannot be measured and rights that are missing: one clear line each; and no probe stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
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
from tests.support.workloads import PROGRAM, both_tracers, build, built, functions, need, run

pytestmark = pytest.mark.compares_code

ABORTED, TARGET, TRACER, INCOMPLETE = 130, 4, 5, 6
NO_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
NO_PTRACE = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
OTHER_USER = 65534
LIBM = Path("/usr/lib/x86_64-linux-gnu/libm.so.6")
LIBC = Path("/usr/lib/x86_64-linux-gnu/libc.so.6")


def outcome(*words: str | Path | int, before: tuple[str, ...] | list[str] = ()) -> tuple[int, str, str]:
    """Exit code, the error line ("" = none), and all of stderr, of our program run behind `before`."""
    argv = [*before, *PROGRAM, *map(str, words)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("memleak-android: error: ")]
    assert len(lines) <= 1 and "Traceback" not in done.stderr, done.stderr
    return done.returncode, "".join(lines), done.stderr


def need_setpriv() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("taking rights away needs root and setpriv")


def build_32_bit(name: str, folder: Path) -> Path:
    try:
        return build(name, folder, "-m32", output="small")
    except subprocess.CalledProcessError:
        pytest.skip("gcc cannot build for -m32 (Debian: gcc-multilib)")


# ---- targets ----


@both_tracers
def test_32_bit_command(tracer: str, tmp_path: Path) -> None:
    program = build_32_bit("plain_leak", tmp_path)
    need(tracer)
    code, line, _ = outcome("--tracer", tracer, "--", program, 7, 11)
    assert code == TARGET and "small is 32-bit, which cannot be traced; use a 64-bit build" in line


def test_32_bit_process(tmp_path: Path) -> None:
    need("bpf")
    with waiting([build_32_bit("waits", tmp_path)], "small") as (_, pid):
        code, line, _ = outcome("--pid", pid)
    assert code == TARGET and f"process {pid} (small) is 32-bit" in line


def test_static_program_that_has_symbols(tmp_path: Path) -> None:
    program = build("plain_leak", tmp_path, "-static", output="alone")
    found = run("bpf", tmp_path, "--", program, "7", "11")
    assert found.amounts() == (77, 7)
    (site,) = found.sites()
    assert functions(site)[:3] == ["malloc", "leak", "main"] and site["end"] == "ROOT"
    code, line, _ = outcome("--tracer", "preload", "--", program, 7, 11)
    assert code == TRACER and "linked statically" in line and "--tracer bpf" in line


def test_static_process_that_has_symbols(tmp_path: Path) -> None:
    program = build("leaks_when_told", tmp_path, "-static", output="alone")
    report = tmp_path / "report.json"
    with waiting([program], "alone") as (process, pid), attached(pid, report) as session:
        process.communicate(b"x" * 3)
        out, err = session.communicate(timeout=60)
    assert session.returncode == 0 and "3,039 bytes in 3 allocations" in out, err


@both_tracers
def test_static_program_without_symbols(tracer: str, tmp_path: Path) -> None:
    program = build("plain_leak", tmp_path, "-static", "-s", output="bare")
    need(tracer)
    code, line, _ = outcome("--tracer", tracer, "--", program, 7, 11)
    if tracer == "bpf":
        assert code == TARGET and "no function malloc found in" in line and "bare" in line
        assert "not stripped" in line
    else:
        assert code == TRACER and "bare" in line and "linked statically" in line


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
    assert functions(site)[:3] == ["malloc", "leak", "main"] and site["end"] == "ROOT"


@pytest.mark.parametrize("kind", ["without malloc", "absent", "no ELF file", "cut"])
def test_library_that_is_not_an_allocator(kind: str, tmp_path: Path) -> None:
    need("bpf")
    library = tmp_path / "other.so"
    if kind == "no ELF file":
        library.write_text("no ELF file\n")
    elif kind != "absent":
        library.write_bytes(LIBM.read_bytes()[: None if kind == "without malloc" else 5000])
    code, line, _ = outcome("--tracer", "bpf", "-O", library, "--", built("plain_leak"), 7, 11)
    assert code == TARGET and "other.so" in line
    assert kind != "without malloc" or "no function malloc found" in line


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


def test_static_command_without_bpf(tmp_path: Path) -> None:
    """The shim is the last resort, and cannot be loaded."""
    need_setpriv()
    program = build("plain_leak", tmp_path, "-static", output="alone")
    code, line, _ = outcome("--", program, 7, 11, before=NO_CAPABILITIES)
    assert code == TRACER and "linked statically" in line


def test_process_of_another_user() -> None:
    """BPF is allowed, but not a look at others' memory."""
    need_setpriv()
    need("bpf")
    program = built("waits")
    with waiting([program], program.name[:15], user=OTHER_USER, group=OTHER_USER, extra_groups=[]) as (
        _,
        pid,
    ):
        code, line, _ = outcome("--pid", pid, before=NO_PTRACE)
    assert code == TARGET and f"it belongs to uid {OTHER_USER}" in line and "run as root" in line


# ---- endings ----


def end_by_interrupt(session: subprocess.Popen[str], agent: int) -> tuple[int, ...]:
    session.send_signal(signal.SIGINT)
    return (0,)


def end_by_killing_host(session: subprocess.Popen[str], agent: int) -> tuple[int, ...]:
    session.kill()
    return (-signal.SIGKILL,)


def end_by_killing_agent(session: subprocess.Popen[str], agent: int) -> tuple[int, ...]:
    os.kill(agent, signal.SIGKILL)
    return (TRACER, INCOMPLETE)


def end_by_second_interrupt(session: subprocess.Popen[str], agent: int) -> tuple[int, ...]:
    """The agent does not answer the first."""
    os.kill(agent, signal.SIGSTOP)
    interrupt(session)
    assert session.poll() is None
    session.send_signal(signal.SIGINT)
    return (ABORTED,)


def end_by_termination(session: subprocess.Popen[str], agent: int) -> tuple[int, ...]:
    session.terminate()
    return (0, -signal.SIGTERM, 128 + signal.SIGTERM, ABORTED)


ENDINGS = [
    end_by_interrupt,
    end_by_killing_host,
    end_by_killing_agent,
    end_by_second_interrupt,
    end_by_termination,
]


@pytest.mark.proof
@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
def test_no_probe_is_left(
    end: Callable[[subprocess.Popen[str], int], tuple[int, ...]], tmp_path: Path
) -> None:
    """The target's code, read back byte by byte: as its files say again; and it goes on."""
    program = build("leaks_when_told", tmp_path, output="program")
    with waiting([program], "program") as (process, pid):
        assert until_unchanged(pid) == {}  # others may trace the whole machine meanwhile
        with attached(pid, tmp_path / "report.json") as session:
            (agent,) = agents_of(session.pid)
            planted = changed_code(pid)
            assert planted and set(planted.values()) == {BREAKPOINT}
            expected = end(session, agent)
            _, err = session.communicate(timeout=60)
            assert session.returncode in expected, err
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
        assert process.stdin is not None
        process.stdin.write(b"xx")
        process.stdin.flush()
        os.kill(pid, signal.SIGKILL)
        session.communicate(timeout=60)
        assert session.returncode == 0
