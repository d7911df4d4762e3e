"""Children that a command forks are measured on request, and else mentioned."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.workloads import (
    PROGRAMS,
    Run,
    both_following,
    both_tracers,
    build,
    built,
    functions,
    plugin,
    run,
)


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
    assert result.report["measurement"] == "complete"


@both_tracers
def test_children_that_run_another_program_are_mentioned(tracer: str, tmp_path: Path) -> None:
    found = run(tracer, tmp_path, "--", built(PROGRAMS / "spawner"))
    assert "4 child processes were not measured; use --follow" in found.report["notes"]
    assert found.amounts() == (1009, 1)


@both_tracers
def test_a_child_that_allocates_before_it_runs_another_program_is_one(tracer: str, tmp_path: Path) -> None:
    result = run(tracer, tmp_path, "--", "/bin/bash", "-c", "/bin/true; /bin/true; :")
    assert "2 child processes were not measured; use --follow" in result.report["notes"]


BORROWER = "borrower"


@pytest.mark.parametrize(
    "tracer", ["preload", "bpf", pytest.param("bpf --follow", marks=pytest.mark.changes_all_code)]
)
@pytest.mark.parametrize("child", ["-DCLONE", "-DVFORK"])
def test_a_child_in_the_memory_of_its_parent(tracer: str, child: str, tmp_path: Path) -> None:
    """Blocks that it frees are gone, and those it leaves are its parent's: it was measured."""
    name, *options = tracer.split()
    result = run(name, tmp_path, "--", built(BORROWER, child), options=options)
    assert result.amounts() == (2003, 1)
    assert result.totals["untracked_frees"] == 0
    (site,) = result.sites()
    assert "leak_in_child" in functions(site)
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


@pytest.mark.changes_all_code
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


THOUSAND = [pytest.mark.proof, pytest.mark.timeout(400)]


def held_by_plugins(result: Run) -> Counter[tuple[str, str]]:
    """Bytes by the leaking function and the module it is named in."""
    found = Counter[tuple[str, str]]()
    for site in result.sites():
        if "leak" in functions(site):
            found[functions(site)[1], Path(site["frames"][1]["module"]).name] += site["inuse_space"]
    return found


@both_tracers
@pytest.mark.parametrize(
    ("words", "leaks"),
    [
        (("one_after_another",), 3),  # at the same address
        (("threads_in_plugins", "50"), 50 * 4 * 3),  # they come and go among busy threads
    ],
)
def test_libraries(tracer: str, words: tuple[str, ...], leaks: int, tmp_path: Path) -> None:
    plugins = [plugin(tmp_path, which, size) for which, size in (("one", 1013), ("two", 1019))]
    result = run(tracer, tmp_path, "--", built(words[0]), *words[1:], *plugins)
    assert result.report["target"]["exit_status"] == 0, "they were not at the same address"
    assert held_by_plugins(result) == {
        ("leak_one", "libone.so"): leaks * 1013,
        ("leak_two", "libtwo.so"): leaks * 1019,
    }


@both_following
@pytest.mark.parametrize("processes", [50, pytest.param(1000, marks=THOUSAND)])
def test_processes_of_5_ms(tracer: str, processes: int, tmp_path: Path) -> None:
    program = build("many_processes", tmp_path)
    result = run(tracer, tmp_path, "--", program, str(processes), options=["--follow"], timeout_s=390)
    assert result.amounts() == (processes * 7 * 1009, processes * 7)
    assert not [note for note in result.report["notes"] if "child" in note]
    assert result.totals["unattributed_objects"] == 0, "they have their stack keys in common"
    named = Counter[tuple[str, str, str]]()
    for site in result.sites():
        frame = site["frames"][1]
        named[frame["function"], Path(frame["module"]).name, site["end"]] += site["inuse_objects"]
    assert named == {("leak_in_child", "many_processes", "ROOT"): processes * 7}
