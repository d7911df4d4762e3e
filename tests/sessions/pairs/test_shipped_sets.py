"""The sets fd and pthread on programs that open, close, begin and end in all the ways that libc has."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.pairs.conftest import FLAGS, WORKLOADS
from tests.support.gcc import gcc
from tests.support.program_server import run_program
from tests.support.workloads import need

TRACERS = (pytest.param("bpf", marks=pytest.mark.bpf), "preload")


def traced(tracer: str, folder: Path, source: str, *words: str) -> tuple[dict[str, Any], str]:
    """The report on a program of programs/, and what the program itself printed."""
    need("bpf") if tracer == "bpf" else None
    program, report_file = folder / "program", folder / "report.json"
    gcc("-std=gnu11", *FLAGS, "-o", program, WORKLOADS / source)
    name = "pthread" if source == "threads.c" else "fd"
    done = run_program(
        ["-q", "--tracer", tracer, "--pairs", name, "--json", report_file, "--", program, *words]
    )
    assert done.returncode in (0, 6), done.stderr
    return json.loads(report_file.read_text()), done.stdout


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


@pytest.mark.parametrize(
    ("tracer", "words"),
    [
        pytest.param("bpf", (), marks=pytest.mark.bpf),
        pytest.param("bpf", ("modules' own calls",), marks=pytest.mark.bpf),
        ("preload", ("modules' own calls",)),
    ],
)
def test_descriptors_are_those_of_the_kernel(tracer: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """The program counts them itself. By slots nothing is seen of what libc closes, so that it is left out there."""
    report, printed = traced(tracer, tmp_path, "descriptors.c", *words)
    assert kept_by(report) == {"keep_opened": 7, "keep_duplicates": 14, "keep_signalfd": 7}
    assert int(printed.split()[0]) == report["totals"]["inuse_objects"]
    assert not report["totals"]["lost"]


BOTH = pytest.mark.parametrize(
    ("tracer", "more"), [pytest.param("bpf", (), marks=pytest.mark.bpf), ("preload", ("modules' own calls",))]
)


@BOTH
@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.proof)])
def test_descriptors_at_random(tracer: str, more: tuple[str, ...], seed: str, tmp_path: Path) -> None:
    """10,000 operations. The program holds its book against the kernel's table before it prints it."""
    report, printed = traced(tracer, tmp_path, "random_descriptors.c", seed, "10000", "8", *more)
    assert by_function(report) == book_of(printed)
    assert report["totals"]["alloc_objects"] > 3000
    assert not report["totals"]["lost"]
    assert not report["totals"]["untracked_frees"]


@BOTH
def test_more_descriptors_at_once_than_are_followed(
    tracer: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """By BPF eight of a message, and what is missing is said."""
    report, printed = traced(tracer, tmp_path, "random_descriptors.c", "3", "2000", "40", *more)
    if tracer == "preload":
        assert by_function(report) == book_of(printed)
    else:
        assert report["totals"]["inuse_objects"] < book_of(printed).total()
        assert report["totals"]["lost"].keys() == {"handles"}
        assert report["verdict"] == "incomplete"


@pytest.mark.parametrize("tracer", TRACERS)
def test_threads_that_are_never_joined(tracer: str, tmp_path: Path) -> None:
    report, _ = traced(tracer, tmp_path, "threads.c")
    assert kept_by(report) == {"keep_c11": 5, "keep_busy": 5, "keep_joinable": 5}
    assert not report["totals"]["lost"]
    assert not report["totals"]["untracked_frees"]
