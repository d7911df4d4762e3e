"""The sets fd and pthread on programs that open, close, begin and end in all the ways that libc has."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.pairs.conftest import TRACERS, WORKLOADS, traced
from tests.sessions.pairs.kept import FILES, held
from tests.support.workloads import Run, build, built, run


def of_set(tracer: str, folder: Path, source: str, *words: str) -> Run:
    """A session on a program of programs/."""
    name = "pthread" if source == "threads" else "fd"
    return traced(tracer, folder, (name,), built(WORKLOADS / source), *words, codes=(0, 6))


def by_function(report: dict[str, Any]) -> Counter[str]:
    """Blocks by the function that acquired them."""
    found: Counter[str] = Counter()
    for site in report["sites"]:
        found[site["frames"][0]["function"]] += site["inuse_objects"]
    return found


def book_of(printed: str) -> Counter[str]:
    """What programs/random_descriptors.c prints."""
    found = re.findall(r"^(\w+) (\d+)$", printed, re.MULTILINE)  # the report follows
    return Counter({name: int(count) for name, count in found})


def kept_by(report: dict[str, Any]) -> Counter[str]:
    """Blocks by the function of the program that keeps them."""
    found: Counter[str] = Counter()
    for site in report["sites"]:
        names = [frame["function"] for frame in site["frames"]]
        found[next((name for name in names if name.startswith("keep_")), str(names))] += site["inuse_objects"]
    return found


BOTH = pytest.mark.parametrize(
    ("tracer", "more"), [pytest.param("bpf", (), marks=pytest.mark.bpf), ("preload", ("modules' own calls",))]
)


@BOTH
@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.proof)])
def test_descriptors_at_random(tracer: str, more: tuple[str, ...], seed: str, tmp_path: Path) -> None:
    """10,000 operations. The program holds its book against the kernel's table before it prints it."""
    done = of_set(tracer, tmp_path, "random_descriptors", seed, "10000", "8", *more)
    assert by_function(done.report) == book_of(done.out)
    assert done.totals["alloc_objects"] > 3000
    assert not done.totals["lost"] and not done.totals["untracked_frees"]


RANGES = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>
int main(void)
{
	for (int n = 0; n < 20; n++) {
		for (int i = 0; i < 100; i++)
			fcntl(1, F_DUPFD, 500);
		close_range(500, 599, 0);
	}
	return 0;
}
"""


@pytest.mark.parametrize("tracer", TRACERS)
def test_what_a_range_closes_is_not_held_at_the_peak(tracer: str, tmp_path: Path) -> None:
    (tmp_path / "ranges.c").write_text(RANGES)
    program = build(tmp_path / "ranges.c", tmp_path, output="ranges")
    report = traced(tracer, tmp_path, ("fd",), program).report
    assert (report["peak"]["space"], report["totals"]["inuse_objects"]) == (100, 0)


@pytest.mark.parametrize("tracer", TRACERS)
def test_streams(tracer: str, tmp_path: Path) -> None:
    done = traced(tracer, tmp_path, ("stdio",), built(WORKLOADS / "streams"), codes=(0, 6))
    assert by_function(done.report) == {"fopen": 1, "fopencookie": 1}
    assert not done.totals["lost"] and not done.totals["untracked_frees"]


@BOTH
def test_more_descriptors_at_once_than_are_followed(
    tracer: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """By BPF eight of a message, and what is missing is said."""
    done = of_set(tracer, tmp_path, "random_descriptors", "3", "2000", "40", *more)
    if tracer == "preload":
        assert by_function(done.report) == book_of(done.out)
    else:
        assert done.totals["inuse_objects"] < book_of(done.out).total()
        assert done.totals["lost"].keys() == {"handles"}
        assert done.report["measurement"] == "incomplete"


@pytest.mark.parametrize("tracer", TRACERS)
def test_threads_that_are_never_joined(tracer: str, tmp_path: Path) -> None:
    done = of_set(tracer, tmp_path, "threads")
    assert kept_by(done.report) == {"keep_c11": 5, "keep_busy": 5, "keep_joinable": 5}
    assert "holds 15 threads from 3 places" in done.report["answer"]["line"]
    assert not done.totals["lost"] and not done.totals["untracked_frees"]


@pytest.mark.bpf
def test_another_program_by_exec_has_its_pairs(pool: Path, tmp_path: Path) -> None:
    """What libc's functions acquire is seen whatever program the process has become."""
    report = traced("bpf", tmp_path, ("fd",), "/usr/bin/env", pool).report
    assert held(report, "pair:fd") == FILES
    assert not [note for note in report["notes"] if "was not measured" in note]


@pytest.mark.bpf
def test_calls_are_named(pool: Path, tmp_path: Path) -> None:
    """--trace: acquired and released by the names of their functions, fd 0 and all."""
    out = run("bpf", tmp_path, "--", pool, options=["-q", "--trace", "--pairs", "fd"]).out
    calls = [line.split(" ", 2)[2] for line in out.splitlines() if re.match(r"[\d.]+ \d+/\d+ ", line)]
    assert sum(one.startswith("open(1) = 0x") for one in calls) == 27
    assert sum(one.startswith("close(0x") for one in calls) == 21
    assert sum(one.startswith("pipe(1) = 0x") for one in calls) == 2
