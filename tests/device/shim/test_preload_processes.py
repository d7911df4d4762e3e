"""Processes under the shim that end, come again under an old pid, or become programs that cannot load it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.wire.blocks import Lost, ProcessEvent
from tests.support.preload_session import PreloadSession, run_preloaded
from tests.support.workloads import ROOT, build, run

HERE = Path(__file__).resolve().parents[1] / "programs"


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    return build(str(HERE / "processes_workload"), folder, "-fno-builtin", output="workload")


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static")
    return build(str(HERE / "processes_workload"), folder, "-fno-builtin", "-static", output="static")


def ran(session: PreloadSession, code: int = 0) -> PreloadSession:
    found = os.waitstatus_to_exitcode(int(session.end["status"]))
    if found == 77:
        pytest.skip("the kernel does not let us choose a pid (/proc/sys/kernel/ns_last_pid)")
    assert found == code
    return session


def lost(session: PreloadSession) -> dict[str, int]:
    return {cause.name: int(session.status["lost"][cause]) for cause in Lost if session.status["lost"][cause]}


def test_exec_that_fails_changes_nothing(workload: Path) -> None:
    session = ran(run_preloaded([workload, "fails", "-"]))
    assert session.sizes() == {1009: 3, 1013: 4}
    assert lost(session) == {}


@pytest.mark.parametrize("way", ["becomes", "thread"])
def test_program_that_cannot_load_the_shim(way: str, workload: Path, static: Path) -> None:
    """The old program's blocks are dropped, and the report says that the new one is not measured."""
    session = ran(run_preloaded([workload, way, static]), code=2)
    assert len(session.live) == 0
    assert lost(session) == {"PROGRAMS": 1}
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


def test_such_a_program_that_goes_on_after_the_session(workload: Path, static: Path, tmp_path: Path) -> None:
    found = run(
        "preload",
        tmp_path,
        "--",
        workload,
        "becomes",
        static,
        "stays",
        "-",
        options=["--duration", "1s"],
        codes=[6],
    )
    assert found.amounts() == (0, 0)
    assert found.totals["lost"] == {"programs": 1}
    assert "became static by exec, which was not measured" in found.out + found.err


def test_child_that_becomes_such_a_program(workload: Path, static: Path) -> None:
    session = ran(run_preloaded([workload, "child", static], follow=True))
    assert len(session.live) == 0
    assert lost(session) == {"PROGRAMS": 1}


@pytest.mark.parametrize("process", ["command", "child"])
def test_exec_that_the_shim_does_not_see(process: str, workload: Path, static: Path) -> None:
    """By a system call of the program's own: the old heap is gone, and the new one is not measured."""
    is_child = process == "child"
    session = ran(run_preloaded([workload, "calls", process, static], follow=True), code=0 if is_child else 2)
    assert session.sizes() == ({1039: 2} if is_child else {})
    assert lost(session) == {"PROGRAMS": 1}


def test_child_that_the_command_does_not_wait_for(workload: Path) -> None:
    """It makes its first call when the command has ended."""
    session = ran(run_preloaded([workload, "leaves", "-"], follow=True))
    assert session.sizes() == {1049: 3}
    assert lost(session) == {}


def test_exec_in_between_loses_nothing(workload: Path) -> None:
    """A program that loads the shim again is measured; what ran before it is forgotten."""
    session = ran(run_preloaded([workload, "becomes", workload]), code=2)
    assert len(session.live) == 0
    assert lost(session) == {}
    assert [event for _, event in session.processes].count(ProcessEvent.EXEC) == 1


@pytest.mark.parametrize("follow", [False, True])
def test_memory_lent_to_children_that_exec(follow: bool, workload: Path, static: Path) -> None:
    session = ran(run_preloaded([workload, "lends", static], follow=follow))
    assert session.sizes() == {1021: 6}
    assert lost(session) == ({"PROGRAMS": 2} if follow else {})


def test_two_processes_of_one_pid(workload: Path) -> None:
    session = ran(run_preloaded([workload, "reuse", "-"], follow=True))
    assert session.sizes() == {1031: 7, 1033: 7}
    rows = session.live
    assert len(np.unique(rows["pid"])) == 1
    assert len(np.unique(rows["sequence"])) == len(rows)
    assert session.status["alloc_objects"] - session.status["free_objects"] == len(rows)
    assert set(rows["key"].tolist()) <= session.evidence_keys()
    assert lost(session) == {}


@pytest.mark.parametrize("max_live", [4096, 64])
def test_what_ended_processes_left_is_kept_up_to_the_limit(max_live: int, workload: Path) -> None:
    session = ran(run_preloaded([workload, "ten", "-"], follow=True, max_live=max_live))
    left = min(70, max_live)
    assert session.sizes() == {1039: left}
    assert session.status["alloc_objects"] == 70
    assert lost(session) == ({"TABLE_FULL": 70 - left} if left < 70 else {})


def test_more_stacks_of_ended_processes_than_there_is_room_for(tmp_path: Path) -> None:
    flags = ("-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'device'}", "-fsanitize=address,undefined")
    program = build(str(HERE / "ended_books"), tmp_path, *flags, output="ended_books")
    subprocess.run([program], check=True, timeout=60)


def test_numbers_go_on_over_many_ranges(workload: Path) -> None:
    session = ran(run_preloaded([workload, "numbers", "-"]))
    assert session.sizes()[24] == 3 * 10007
    assert len(np.unique(session.live["sequence"])) == len(session.live)
    assert int(session.live["sequence"].min()) > 0
