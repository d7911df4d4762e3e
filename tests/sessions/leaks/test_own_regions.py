"""Programs with an allocator above mmap(): the regions it keeps are judged like blocks, or said to have no owner."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.workloads import ONE_REQUEST, built, functions, run, serving

RUNS = 9  # more than growth needs


def of_started(tracer: str, folder: Path, how: str, runs: int = RUNS) -> dict[str, Any]:
    """The report of as many requests."""
    with serving(folder) as fifos:
        return report(tracer, folder, "--", built("arenas"), how, *fifos, runs=runs)


def report(tracer: str, folder: Path, *target: str | Path, runs: int = RUNS) -> dict[str, Any]:
    options = ["--scenario", ONE_REQUEST, "--repeat", str(runs)]
    return run(tracer, folder, *target, options=options, codes=(0, 6)).report


def growing(report: dict[str, Any]) -> list[tuple[str, ...]]:
    assert report["growth_span"]["instants"] >= report["growth_span"]["needed"]
    assert {site["growth"]["trend"] for site in report["sites"] if site["kind"] == "mmap"} <= {"grows"}
    return [tuple(functions(site)[:3]) for site in report["sites"] if site["growth"]["trend"] == "grows"]


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_of_a_program_that_we_start(tracer: str, tmp_path: Path) -> None:
    found = of_started(tracer, tmp_path, "libc", runs=30)
    assert growing(found) == [("mmap", "new_arena", "main")]
    assert "unowned" not in found, "its growth is said once, as that of a place"
    assert 1009 <= found["totals"]["inuse_space"] < 65536, "regions are no blocks"


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_regions_that_are_given_back_at_the_end(tracer: str, tmp_path: Path) -> None:
    """They had grown until then, and the place is what took them."""
    done = run(tracer, tmp_path, "--", built("regions_until_exit"), options=["--interval", "200ms"])
    assert done.report["answer"]["state"] == "leaking"
    grown = {one["function"] for one in done.report["places"] if one["growth"]["trend"] == "grows"}
    assert grown == {"new_region"} and "unowned" not in done.report


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline", "bpf"])
def test_of_a_running_program(tracer: str, tmp_path: Path) -> None:
    with (
        serving(tmp_path) as fifos,
        subprocess.Popen([built("arenas"), "libc", *fifos], cwd=tmp_path) as program,
    ):
        subprocess.run(ONE_REQUEST, shell=True, cwd=tmp_path, check=True, timeout=60)  # it is past its loader
        found = report(tracer, tmp_path, "--pid", str(program.pid))
        program.kill()
    assert growing(found) == [("mmap", "new_arena", "main")]


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
@pytest.mark.parametrize(
    ("how", "function", "caller"), [("shm", "shmat", "arena_of_shm"), ("sbrk", "sbrk", "arena_of_break")]
)
def test_of_other_calls_than_mmap(how: str, function: str, caller: str, tracer: str, tmp_path: Path) -> None:
    found = of_started(tracer, tmp_path, how)
    assert growing(found) == [(function, caller, "main")]
    held = sum(
        site["inuse_space"]
        for site in found["sites"]
        if site["kind"] == "mmap" and site["growth"]["trend"] == "grows"
    )
    assert held == RUNS * 65536, "what was given back does not count"
    assert "unowned" not in found


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "bpf"])
def test_a_full_queue_that_is_attached_to(tracer: str, tmp_path: Path) -> None:
    """Its new blocks are counted, the older ones that they replace are not, and the process does not grow."""
    with (
        serving(tmp_path) as fifos,
        subprocess.Popen([built("arenas"), "queue", *fifos], cwd=tmp_path) as program,
    ):
        subprocess.run(ONE_REQUEST, shell=True, cwd=tmp_path, check=True, timeout=60)  # it is full
        found = report(tracer, tmp_path, "--pid", str(program.pid))
        program.kill()
    assert found["answer"]["state"] == "cannot_tell" and "replace older ones" in found["answer"]["why"]


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_a_reserve_that_is_filled(tracer: str, tmp_path: Path) -> None:
    """A vector doubles too rarely to be judged, and what is resident grows."""
    found = of_started(tracer, tmp_path, "vector", runs=28)
    assert found["answer"]["state"] == "cannot_tell" and "resident" in found["answer"]["why"]
    assert found["measurement"] == "complete"


def test_a_program_that_may_not_read_its_own_mappings(tmp_path: Path) -> None:
    """The agent reads them, and a thread has no number."""
    found = of_started("preload", tmp_path, "sandbox")
    assert growing(found) == [("malloc", "block_in_sandbox", "main")]


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_a_child_that_grows_in_the_programs_place(tracer: str, tmp_path: Path) -> None:
    with serving(tmp_path) as fifos:
        found = report(tracer, tmp_path, "--", "timeout", "60", built("arenas"), "libc", *fifos)
    assert found["answer"]["state"] == "cannot_tell"
    assert "(arenas) was not measured: use --follow" in found["answer"]["why"]


def test_direct_system_calls_by_bpf(tmp_path: Path) -> None:
    found = of_started("bpf", tmp_path, "syscall")
    assert growing(found) == [("mmap", "arena_of_kernel", "main")]


@pytest.mark.proof
@pytest.mark.parametrize("parent", [(), ("timeout", "60")], ids=["", "child"])
def test_direct_system_calls_that_no_hook_sees(parent: tuple[str, ...], tmp_path: Path) -> None:
    """The kernel's figures show them."""
    with serving(tmp_path) as fifos:
        program = (*parent, built("arenas"), "syscall", *fifos)
        found = report("preload", tmp_path, "--follow", "--", *program, runs=30)
    assert not growing(found)
    (unowned,) = (each for each in found["unowned"] if each["part"] == "mappings")
    (largest,) = unowned["largest"]
    assert largest["name"] == "" and unowned["rise"] <= largest["space"]
    assert found["measurement"] == "incomplete"
    assert (
        "the process grows by memory that belongs to no block and no region that was seen" in found["notes"]
    )
