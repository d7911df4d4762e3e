"""The same pairs by BPF and by the shim, where functions are called through slots: the same numbers and whole stacks."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import POOL, TRACERS, WORKLOADS, in_library, traced
from tests.sessions.pairs.kept import check_kept, held
from tests.support.program_server import start_program
from tests.support.workloads import built

SECONDS = 120


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("heap", [("malloc",), pytest.param((), marks=pytest.mark.proof)])
def test_a_pool_in_a_library(
    tracer: str, heap: tuple[str, ...], pool_in_library: Path, tmp_path: Path
) -> None:
    report = traced(tracer, tmp_path, (*heap, "fd", "pthread", POOL), pool_in_library).report
    check_kept(report)
    assert report["target"]["tracer"] == tracer
    assert not report["totals"]["lost"] and report["measurement"] == "complete"
    kinds = {site["kind"] for site in report["sites"]}  # of the heap only what the runtime holds
    assert kinds - {"runtime"} == {"pair:pool", "pair:fd", "pair:pthread"}
    assert bool(heap) or "runtime" not in kinds


def test_a_running_process(pool_in_library: Path, tmp_path: Path) -> None:
    gate, report = tmp_path / "go", tmp_path / "report.json"
    with subprocess.Popen([pool_in_library, gate]) as program:
        sets = ("--pairs", "fd", "--pairs", "pthread", "--pairs", POOL, "--json", str(report))
        how = ("-q", "--tracer", "plt", "--interval", "1s", "--pid", str(program.pid))
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with start_program([*how, *sets], **streams) as session:
            assert session.stdout.readline(), session.stderr.read()  # the slots are set
            gate.touch()
            _, said = session.communicate(timeout=SECONDS)
        assert program.wait(SECONDS) == 0
    assert session.returncode == 0, said
    check_kept(json.loads(report.read_text()))


@pytest.mark.parametrize("tracer", TRACERS)
def test_odd_calls_are_what_they_were(tracer: str, tmp_path: Path) -> None:
    """Arguments and results in every report_file; an exception leaves nothing behind. The program checks each result."""
    program, pairs = in_library(tmp_path, "odd_calls.cc", "odd_main.cc"), tmp_path / "odd.toml"
    text = (WORKLOADS / "odd.toml").read_text()
    # the kernel's return probe is in the way of exceptions
    pairs.write_text(text.replace(' "odd_throw",', "") if tracer == "bpf" else text)
    report = traced(tracer, tmp_path, (str(pairs),), program).report
    found = {site["frames"][0]["function"]: site["inuse_objects"] for site in report["sites"]}
    assert found == {
        f"odd_{name}": 1
        for name in ("many", "double", "long_double", "large", "mixed", "vector", "variadic", "outer")
    }
    assert {site["end"] for site in report["sites"]} == {"ROOT"}


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_function_that_calls_itself(tracer: str, tmp_path: Path) -> None:
    program = in_library(tmp_path, "recursive.c", "recursive_main.c")
    report = traced(tracer, tmp_path, (str(WORKLOADS / "recursive.toml"),), program).report
    assert sum(site["inuse_objects"] for site in report["sites"]) == 3
    assert report["totals"]["alloc_objects"] == 4
    assert not report["totals"]["lost"]


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_function_of_two_versions(tracer: str, tmp_path: Path) -> None:
    """A slot goes by the name alone: with the shim calls of one version must not land in the other."""
    script = f"-Wl,--version-script,{WORKLOADS / 'versions.map'}"
    program = in_library(tmp_path, "versions.c", "versions_main.c", (script,))
    codes = (6,) if tracer == "preload" else (0,)
    done = traced(tracer, tmp_path, (str(WORKLOADS / "versions.toml"), "fd"), program, codes=codes)
    found = sorted((site["inuse_space"], site["inuse_objects"]) for site in done.report["sites"])
    assert found == ([(500, 5), (800, 4)] if tracer == "bpf" else [])
    assert ("take has several versions" in done.err) == (tracer == "preload")


def test_calls_from_own_code_are_not_separated(pool_in_library: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "own.toml"
    pairs.write_text(Path(POOL).read_text().replace("[pool]", '[pool]\nnesting = "own code"', 1))
    said = traced("preload", tmp_path, (str(pairs), "fd"), pool_in_library, codes=(6,)).err
    reason = "pair pool: the shim does not see which calls come from a file's own code; use --tracer bpf"
    assert reason in said


def test_what_has_no_slot_is_named(pool: Path, tmp_path: Path) -> None:
    said = traced("preload", tmp_path, ("fd", POOL), pool, codes=(6,)).err.replace(" (use", "; use")
    for name in ("pool_take", "pool_open", "pool_give"):
        assert f"{name} is not exported, and the shim uses slots only; use --tracer bpf" in said
    assert "so the pair is skipped" in said


@pytest.mark.parametrize("tracer", TRACERS)
def test_resizes_to_0_that_return_0(tracer: str, tmp_path: Path) -> None:
    """A failure, by which the old handle stays, unless the pair says realloc's rule."""
    program = in_library(tmp_path, "regrow.c", "regrow_main.c")
    done = traced(tracer, tmp_path, (str(WORKLOADS / "regrow.toml"),), program)
    kept = {name: done.amounts(f"pair:{name}") for name in ("regrow", "conditional", "remake")}
    assert kept == {"regrow": (20, 1), "conditional": (30, 1), "remake": (0, 0)}


@pytest.mark.parametrize("tracer", TRACERS)
def test_each_reference_counts(tracer: str, tmp_path: Path) -> None:
    program = in_library(tmp_path, "references.c", "references_main.c")
    done = traced(tracer, tmp_path, (str(WORKLOADS / "references.toml"),), program)
    assert held(done.report, "pair:object") == {
        ("object_hold", "main"): (20, 20),
        ("object_hold", "hold_again"): (2, 2),
    }
    assert not done.totals["lost"] and not done.totals["untracked_frees"]


@pytest.mark.parametrize("tracer", TRACERS)
def test_more_than_the_table_has_room_for_are_lost(tracer: str, tmp_path: Path) -> None:
    program = in_library(tmp_path, "references.c", "references_main.c")
    done = traced(tracer, tmp_path, (str(WORKLOADS / "references.toml"),), program, "many", codes=(6,))
    assert done.totals["inuse_objects"] + done.totals["lost"]["table_full"] == 20 + 1000
    assert 30 <= done.totals["inuse_objects"] - 20 < 1000


HELD = {"cxx": {"main": (300, 3)}, "fd": {"main": (2, 2)}}


@pytest.mark.parametrize("pairs", HELD)
@pytest.mark.parametrize("tracer", TRACERS)
def test_what_they_leave_is_not_held_and_the_program_lives(tracer: str, pairs: str, tmp_path: Path) -> None:
    """By a return probe, operator new ended the program at its first exception, and open() kept the destructor from running."""
    program = built(WORKLOADS / "left_by_unwinding.cc", "-pthread")
    report = traced(tracer, tmp_path, (pairs,), program).report
    found: dict[str, tuple[int, int]] = {}
    for site in report["sites"]:
        if site["kind"] == f"pair:{pairs}":
            caller = next(frame["function"] for frame in site["frames"][1:] if "new" not in frame["function"])
            space, objects = found.get(caller, (0, 0))
            found[caller] = (space + site["inuse_space"], objects + site["inuse_objects"])
    assert found == HELD[pairs]
    assert report["totals"]["lost"] == {}


@pytest.mark.parametrize("tracer", TRACERS)
def test_handles_of_64_bits_and_of_0(tracer: str, tmp_path: Path) -> None:
    """Handles differ in their top byte alone, and 0 is one: it is acquired and released."""
    program = in_library(tmp_path, "handles.c", "handles_main.c")
    for more, numbers in ((), 7), (("all",), 0):
        report = traced(tracer, tmp_path, (str(WORKLOADS / "handles.toml"),), program, *more).report
        found = {site["kind"]: site["inuse_objects"] for site in report["sites"]}
        assert found == {"pair:slot": 15} | ({"pair:number": numbers} if numbers else {})
        assert not report["totals"]["lost"] and not report["totals"]["untracked_frees"]
