"""Descriptors by BPF after an exec, and as `--trace` shows them. What a program keeps of each set: test_by_shim.py."""

import re
from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import traced
from tests.sessions.pairs.kept import FILES, held
from tests.support.workloads import run

pytestmark = pytest.mark.bpf


def test_another_program_by_exec_has_its_pairs(pool: Path, tmp_path: Path) -> None:
    """What libc's functions acquire is seen whatever program the process has become."""
    report = traced("bpf", tmp_path, ("fd",), "/usr/bin/env", pool).report
    assert held(report, "pair:fd") == FILES
    assert not [note for note in report["notes"] if "was not measured" in note]


def test_calls_are_named(pool: Path, tmp_path: Path) -> None:
    """--trace: acquired and released by the names of their functions, fd 0 and all."""
    out = run("bpf", tmp_path, "--", pool, options=["-q", "--trace", "--pairs", "fd"]).out
    calls = [line.split(" ", 2)[2] for line in out.splitlines() if re.match(r"[\d.]+ \d+/\d+ ", line)]
    assert sum(one.startswith("open(1) = 0x") for one in calls) == 27
    assert sum(one.startswith("close(0x") for one in calls) == 21
    assert sum(one.startswith("pipe(1) = 0x") for one in calls) == 2
