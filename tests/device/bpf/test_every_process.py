"""`--all`: every process of the machine, those that come later too, by what each of them holds."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.attached_session import order
from tests.support.containers import in_container, make_root, need_namespaces
from tests.support.program_server import run_program, start_program
from tests.support.workloads import built, need

pytestmark = pytest.mark.bpf

COUNT, SIZE = 200, 1000
Between = Callable[[], None]


Holder = subprocess.Popen[bytes]


@contextlib.contextmanager
def holder(argv: Sequence[str | Path]) -> Iterator[Holder]:
    """A program that allocates on request and ends with its input."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.communicate(timeout=60)


def hold(process: Holder) -> None:
    assert order(process, b"\n") == b"held\n"


def argv_of(count: int = COUNT, size: int = SIZE) -> list[str | Path]:
    return [built("holds_on_word"), str(count), str(size)]


def session(folder: Path, between: Between) -> dict[str, Any]:
    """report.json of a session of every process, in which `between` ran."""
    need("bpf")
    if os.geteuid() != 0:
        pytest.skip("every process can be measured by root only")
    report = folder / "report.json"
    words = ["--all", "-T", "1", "--json", report, "-o", folder / "out"]
    with start_program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stderr is not None
            said = [""]
            while "allocations" not in said[-1]:  # the progress of a session that runs
                said.append(tracer.stderr.readline())
                assert said[-1], said
            between()
        finally:
            tracer.send_signal(2)
            _, errors = tracer.communicate(timeout=200)
    assert tracer.returncode in (0, 6), errors
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def of_pid(report: dict[str, Any], pid: int) -> dict[str, Any]:
    rows = [row for row in report["processes"] if row["pid"] == pid]
    assert len(rows) == 1, report["processes"]
    return dict(rows[0])


def shares(report: dict[str, Any], pid: int) -> list[tuple[list[str], int, int]]:
    """Functions of each site that the process has blocks of, with its bytes and blocks."""
    return [
        ([frame["function"] for frame in site["frames"]], one["space"], one["objects"])
        for site in report["sites"]
        for one in site["processes"]
        if one["pid"] == pid
    ]


def named(report: dict[str, Any], pid: int, count: int) -> int:
    """Blocks of the process that have a stack, each the right one: all, unless the report says that stacks were lost.

    The first may be alone under a key of its own, made before the rules of its code were known: of a single small block
    no stack is asked.
    """
    found = shares(report, pid)
    assert all(functions[:3] == ["malloc", "hold", "main"] for functions, _, _ in found), found
    objects = sum(one for _, _, one in found)
    assert objects in (count, count - 1) or report["totals"]["lost"].get("ring_full"), (
        found,
        report["totals"],
    )
    return objects


@pytest.mark.changes_all_code
def test_running_processes_are_reported_ended_ones_are_not_and_static_ones_are_named(tmp_path: Path) -> None:
    static = built("holds_on_word", "-static", "-s")  # without an allocator that can be probed
    with holder(argv_of()) as first, holder(argv_of(2 * COUNT)) as second, contextlib.ExitStack() as later:
        unseen = later.enter_context(holder([static, "1", "1"]))
        hold(unseen)
        late, gone = list[Holder](), list[Holder]()

        def between() -> None:
            for one in (first, second, unseen):
                hold(one)
            with holder(argv_of()) as one:
                hold(one)
                gone.append(one)
            late.append(later.enter_context(holder(argv_of(COUNT, 2 * SIZE))))
            hold(late[0])

        report = session(tmp_path, between)
        expected = ((first, COUNT, SIZE), (second, 2 * COUNT, SIZE), (late[0], COUNT, 2 * SIZE))
        for one, count, size in expected:
            pid = one.pid
            row = of_pid(report, pid)
            assert (row["space"], row["objects"]) == (count * size, count)
            assert row["name"] == "holds_on_word"
            with_stack = named(report, pid, count)
            assert row["complete_space"] == with_stack * size
            assert row["top_site"] in ({site["id"] for site in report["sites"]} if with_stack else {""})
        pids = {row["pid"] for row in report["processes"]}
        assert gone[0].pid not in pids
        assert report["target"]["pid"] == 0
        notes = [note for note in report["notes"] if "cannot be measured" in note]
        assert any(static.name in note for note in notes), report["notes"]
    recording = str(tmp_path / "out" / "recording.memleak")
    assert json.loads(report_of(recording, "--format", "json"))["processes"] == report["processes"]
    chosen = json.loads(report_of(recording, "--format", "json", "--pid", str(second.pid)))
    assert chosen["totals"]["inuse_space"] == 2 * COUNT * SIZE and "processes" not in chosen
    assert sum(site["inuse_objects"] for site in chosen["sites"]) == named(report, second.pid, 2 * COUNT)
    text = report_of(recording, "-v", "-T", "0")
    assert all("in holds_on_word" in text and f"(pid {one.pid})" in text for one, _, _ in expected)


def report_of(recording: str, *words: str) -> str:
    done = run_program(["report", recording, *words])
    assert done.returncode in (0, 6), done.stderr
    return done.stdout


@pytest.mark.changes_all_code
@pytest.mark.proof
def test_the_tables_take_more_processes_than_they_hold_at_once(tmp_path: Path) -> None:
    """Entries of ended processes are freed: 100,000 keys and blocks pass, and none of them stays."""

    def between() -> None:
        for _ in range(50):
            with holder(argv_of(2000, 64)) as one:
                hold(one)

    report = session(tmp_path, between)
    assert report["totals"]["alloc_objects"] >= 50 * 2000
    assert "table_full" not in report["totals"]["lost"]
    name = "holds_on_word"
    assert [row for row in report.get("processes", []) if row["name"] == name] == []
    assert any("still held by programs when these ended" in note for note in report["notes"])


@pytest.mark.changes_all_code
@pytest.mark.proof
def test_a_container_with_a_c_library_of_its_own(tmp_path: Path) -> None:
    need_namespaces()
    root = make_root(tmp_path, "glibc", "holds_on_word", "holds")
    with holder(in_container(root, "/holds", str(COUNT), str(SIZE))) as one:
        hold(one)  # it runs, in its namespaces
        report = session(tmp_path, lambda: hold(one))
        rows = [row for row in report["processes"] if row["name"] == "holds"]
        assert [(row["space"], row["objects"]) for row in rows] == [(COUNT * SIZE, COUNT)]
        named(report, rows[0]["pid"], COUNT)


@pytest.mark.parametrize(
    "words", [("--pid", "1"), ("--kernel",), ("--pairs", "fd"), ("--", "true"), ("--tracer", "preload")]
)
def test_what_does_not_go_with_it_is_said(words: tuple[str, ...]) -> None:
    done = run_program(["--all", *words])
    assert done.returncode == 2 and "--all" in done.stderr
