"""A program's own pool, file descriptors and threads by BPF: what it keeps, exactly, with whole stacks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.pairs.kept import FILES, check_kept, held
from tests.support.program_server import run_program
from tests.support.workloads import need

pytestmark = pytest.mark.bpf
POOL_FILE = Path(__file__).parent / "programs" / "pool.toml"


@pytest.fixture(scope="module")
def report(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need("bpf")
    report_file = tmp_path_factory.mktemp("report") / "report.json"
    sets = [word for one in ("malloc", "fd", "pthread", str(POOL_FILE)) for word in ("--pairs", one)]
    argv = ["-q", *sets, "--json", str(report_file), "--", str(pool)]
    done = run_program(argv)
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(report_file.read_text())
    return parsed


def test_each_is_exact_with_whole_stacks(report: dict[str, Any]) -> None:
    check_kept(report)


def test_the_heap_is_a_set_beside_them(report: dict[str, Any]) -> None:
    """malloc's own, among pending calls of pairs: nothing lost, and threads' vectors are the runtime's."""
    kinds = {site["kind"] for site in report["sites"]}
    assert "user" not in kinds
    assert not report["totals"]["lost"]
    assert report["verdict"] == "ok"


def test_another_program_by_exec_has_its_pairs(pool: Path, tmp_path: Path) -> None:
    """What libc's functions acquire is seen whatever program the process has become."""
    need("bpf")
    report_file = tmp_path / "report.json"
    argv = ["-q", "--pairs", "fd", "--json", str(report_file), "--", "/usr/bin/env", str(pool)]
    done = run_program(argv)
    assert done.returncode == 0, done.stderr
    report = json.loads(report_file.read_text())
    assert held(report, "pair:fd") == FILES
    assert not [note for note in report["notes"] if "was not measured" in note]


def test_calls_are_named(pool: Path) -> None:
    """--trace: acquired and released by the names of their functions, fd 0 and all."""
    need("bpf")
    argv = ["-q", "--trace", "--pairs", "fd", "--", str(pool)]
    done = run_program(argv)
    calls = [line.split(" ", 2)[2] for line in done.stdout.splitlines() if re.match(r"[\d.]+ \d+/\d+ ", line)]
    assert sum(one.startswith("open(1) = 0x") for one in calls) == 27
    assert sum(one.startswith("close(0x") for one in calls) == 21
    assert sum(one.startswith("pipe(1) = 0x") for one in calls) == 2
