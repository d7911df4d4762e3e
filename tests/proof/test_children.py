"""Children that a command forks are measured on request, and else mentioned."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support.workloads import PROGRAMS, both_tracers, built, functions, run


@both_tracers
@pytest.mark.parametrize(
    ("children", "remark"),
    [
        (0, []),
        (1, ["1 child process was not measured; use --follow"]),
        (3, ["3 child processes were not measured; use --follow"]),
    ],
)
def test_children_not_measured_are_mentioned(
    tracer: str, children: int, remark: list[str], tmp_path: Path
) -> None:
    result = run(tracer, tmp_path, "--", built("forks"), str(children))
    assert [note for note in result.report["notes"] if "child" in note] == remark
    assert result.amounts() == (7, 1)
    assert result.report["verdict"] == "ok"


@both_tracers
def test_children_that_run_another_program_are_mentioned(tracer: str, tmp_path: Path) -> None:
    found = run(tracer, tmp_path, "--", built(PROGRAMS / "spawner"))
    assert "4 child processes were not measured; use --follow" in found.report["notes"]
    assert found.amounts() == (1009, 1)


@both_tracers
def test_siblings_that_allocate_by_the_same_stack(tracer: str, tmp_path: Path) -> None:
    """They have their addresses, and so their stack keys, in common."""
    result = run(tracer, tmp_path, "--", built("forks"), "5", options=["--follow"])
    assert not [note for note in result.report["notes"] if "child" in note]
    assert result.totals["unattributed_objects"] == 0
    (site,) = (site for site in result.sites() if "leak_in_child" in functions(site))
    assert (site["inuse_space"], site["inuse_objects"], site["end"]) == (55, 5, "ROOT")


@pytest.mark.proof
@both_tracers
def test_a_child_in_the_memory_of_its_parent(tracer: str, tmp_path: Path) -> None:
    """Blocks that a child of vfork() frees are gone, and those it leaves are held.

    Known defect of the BPF tracer: from Linux 6.12 on, the pid filter of a multi-uprobe link compares thread groups, not
    address spaces. Calls of the child are not seen: the block that it freed is reported, the block that it left is not.
    """
    result = run(tracer, tmp_path, "--", built("vfork_frees"))
    release = tuple(int(number) for number in platform.release().split(".")[:2])
    is_missed = tracer == "bpf" and release >= (6, 12)
    assert result.amounts() == ((1009, 1) if is_missed else (2003, 1))
    assert result.totals["untracked_frees"] == 0
