"""Processes under the shim that end, come again under an old pid, or become programs that cannot load it."""

import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.wire.blocks import Lost
from tests.support.preload_session import PreloadSession, run_preloaded
from tests.support.workloads import PROGRAMS, built, run


def workload(*flags: str) -> Path:
    return built(PROGRAMS / "processes_workload", "-fno-builtin", *flags)


def ran(session: PreloadSession, code: int = 0) -> PreloadSession:
    found = os.waitstatus_to_exitcode(int(session.end["status"]))
    if found == 77:
        pytest.skip("the kernel does not let us choose a pid (/proc/sys/kernel/ns_last_pid)")
    assert found == code
    return session


def lost(session: PreloadSession) -> dict[str, int]:
    return {cause.name: int(session.status["lost"][cause]) for cause in Lost if session.status["lost"][cause]}


ONE_PROGRAM = {"PROGRAMS": 1}


@pytest.mark.parametrize(
    ("words", "follow", "code", "sizes", "losses"),
    [
        (["fails", "-"], False, 0, {1009: 3, 1013: 4}, {}),  # an exec that fails changes nothing
        # Programs that cannot load the shim: the old program's blocks are dropped, the new one is not measured.
        (["becomes", "static"], False, 2, {}, ONE_PROGRAM),
        (["thread", "static"], False, 2, {}, ONE_PROGRAM),
        (["child", "static"], True, 0, {}, ONE_PROGRAM),
        # An exec that the shim does not see, by a system call of the program's own.
        (["calls", "command", "static"], True, 2, {}, ONE_PROGRAM),
        (["calls", "child", "static"], True, 0, {1039: 2}, ONE_PROGRAM),
        # A child that the command does not wait for makes its first call when the command has ended.
        (["leaves", "-"], True, 0, {1049: 3}, {}),
        # Memory is lent to children that exec.
        (["lends", "static"], False, 0, {1021: 6}, {}),
        (["lends", "static"], True, 0, {1021: 6}, {"PROGRAMS": 2}),
    ],
)
def test_what_stays_measured(
    words: list[str], follow: bool, code: int, sizes: dict[int, int], losses: dict[str, int]
) -> None:
    command = [workload(), *(workload("-static") if word == "static" else word for word in words)]
    session = ran(run_preloaded(command, follow=follow), code)
    assert (session.sizes(), lost(session)) == (sizes, losses)
    if losses and not follow:
        (remark,) = session.remarks
        assert "not measured" in remark


def test_set_user_id_program(tmp_path: Path) -> None:
    """ld.so loads nothing of LD_PRELOAD into it."""
    passwd = Path("/usr/bin/passwd")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs root and setpriv")
    if not passwd.exists() or not passwd.stat().st_mode & stat.S_ISUID:
        pytest.skip(f"{passwd} is not set-user-ID here")
    session = run_preloaded(["setpriv", "--reuid=65534", "--clear-groups", passwd, "-S", "root"])
    assert len(session.live) == 0
    assert lost(session) == {"PROGRAMS": 1}


def test_such_a_program_that_goes_on_after_the_session(tmp_path: Path) -> None:
    words = ["--", workload(), "becomes", workload("-static"), "stays", "-"]
    found = run("preload", tmp_path, *words, options=["--duration", "1s"], codes=[6])
    assert found.amounts() == (0, 0)
    assert found.totals["lost"] == {"programs": 1}
    assert "became processes_workl by exec, which was not measured" in found.out + found.err


def test_two_processes_of_one_pid() -> None:
    session = ran(run_preloaded([workload(), "reuse", "-"], follow=True))
    assert session.sizes() == {1031: 7, 1033: 7}
    rows = session.live
    assert len(np.unique(rows["pid"])) == 1
    assert len(np.unique(rows["sequence"])) == len(rows)
    assert session.status["alloc_objects"] - session.status["free_objects"] == len(rows)
    assert set(rows["key"].tolist()) <= session.evidence_keys()
    assert lost(session) == {}


def test_threads_whose_first_calls_in_a_child_are_simultaneous() -> None:
    """One of them joins the session; the others' calls count, too."""
    session = ran(run_preloaded([workload("-pthread"), "threads", "-"], follow=True))
    assert session.sizes()[1051] == 20 * 4 * 7
    assert lost(session) == {}


@pytest.mark.parametrize("max_live", [4096, 64])
def test_what_ended_processes_left_is_kept_up_to_the_limit(max_live: int) -> None:
    session = ran(run_preloaded([workload(), "ten", "-"], follow=True, max_live=max_live))
    left = min(70, max_live)
    assert session.sizes() == {1039: left}
    assert session.status["alloc_objects"] == 70
    assert lost(session) == ({"TABLE_FULL": 70 - left} if left < 70 else {})
