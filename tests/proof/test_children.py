"""Children that a command forks are measured on request, and else mentioned."""

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


BORROWER = "borrower"


@pytest.mark.parametrize("tracer", ["preload", "bpf", "bpf --follow"])
@pytest.mark.parametrize("child", ["-DCLONE", "-DVFORK"])
def test_a_child_in_the_memory_of_its_parent(tracer: str, child: str, tmp_path: Path) -> None:
    """Blocks that it frees are gone, and those it leaves are its parent's. BPF can tell that it was measured."""
    name, *options = tracer.split()
    result = run(name, tmp_path, "--", built(BORROWER, child), options=options)
    assert result.amounts() == (2003, 1)
    assert result.totals["untracked_frees"] == 0
    (site,) = result.sites()
    assert "leak_in_child" in functions(site)
    if name == "bpf":
        assert not [note for note in result.report["notes"] if "child" in note]


@pytest.mark.parametrize(("children", "unmeasured"), [("vvvfff", 3), ("v", 0), ("vFx", 2)])
def test_children_of_children_in_the_memory_of_the_first(
    children: str, unmeasured: int, tmp_path: Path
) -> None:
    """One that is measured does not stand for another that is not."""
    result = run("bpf", tmp_path, "--", built("nested_borrowers"), children)
    assert result.report["target"]["exit_status"] == 0
    notes = [note for note in result.report["notes"] if "child" in note]
    assert [int(note.split()[0]) for note in notes] == [unmeasured] * bool(unmeasured)


def test_calls_in_borrowed_memory_that_no_probe_sees(tmp_path: Path) -> None:
    """Links for many see one thread group on kernels from 6.12 on, and this program shows no import that would tell."""
    result = run("bpf", tmp_path, "--", built(BORROWER, "-DFOUND"), codes=[0, 6])
    if result.amounts() == (2003, 1):
        assert result.totals["lost"] == {}
        return
    assert result.amounts() == (1009, 1)
    assert result.totals["lost"]["programs"] == 1
    (note,) = (note for note in result.report["notes"] if "child" in note)
    assert note.startswith("1 child process ran in the target's memory") and note.endswith("use --follow")
    follow = run("bpf", tmp_path, "--", built(BORROWER, "-DFOUND"), options=["--follow"])
    assert follow.amounts() == (2003, 1)
