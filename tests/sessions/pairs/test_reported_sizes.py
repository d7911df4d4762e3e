"""Sizes that a function of the process returns: equal to the program's own count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.pairs.schema import read_pair_sets
from tests.sessions.pairs.conftest import WORKLOADS, in_library
from tests.sessions.pairs.test_by_shim import words
from tests.support.program_server import run_program
from tests.support.workloads import need

PAIRS = str(WORKLOADS / "sized.toml")


@pytest.mark.parametrize("heap", [("malloc",), ()])
def test_the_program_says_the_same(heap: tuple[str, ...], tmp_path: Path) -> None:
    program, report_file = in_library(tmp_path, "sized.c", "sized_main.c"), tmp_path / "report.json"
    argv = [*words("preload", report_file, PAIRS, *heap), "--", str(program)]
    done = run_program(argv)
    assert done.returncode == 0, done.stderr
    (own,) = (line for line in done.stdout.splitlines() if line.startswith("own "))
    kept, n_kept, cells, n_cells = map(int, own.split()[1:])
    assert kept % 8 == 0 and cells % 16 == 0
    report = json.loads(report_file.read_text())
    held = dict.fromkeys(("pair:heap", "pair:cell"), (0, 0))
    for site in report["sites"]:
        if site["kind"] in held:
            n_bytes, n = held[site["kind"]]
            held[site["kind"]] = n_bytes + site["inuse_space"], n + site["inuse_objects"]
    assert held == {"pair:heap": (kept, n_kept), "pair:cell": (cells, n_cells)}
    assert not report["totals"]["lost"]


@pytest.mark.bpf
def test_bpf_cannot_ask(tmp_path: Path) -> None:
    need("bpf")
    program = in_library(tmp_path, "sized.c", "sized_main.c")
    argv = [*words("bpf", tmp_path / "report.json", PAIRS, "fd"), "--", str(program)]
    done = run_program(argv)
    assert done.returncode == 0, done.stderr
    assert "pair heap: keep: malloc_usable_size() would have to be called in the process" in done.stderr
    assert "--tracer preload or plt" in done.stderr


def test_a_size_function_that_is_not_exported(tmp_path: Path) -> None:
    program, pairs = in_library(tmp_path, "sized.c", "sized_main.c"), tmp_path / "other.toml"
    pairs.write_text((WORKLOADS / "sized.toml").read_text().replace("cell_size(", "no_size("))
    argv = [*words("preload", tmp_path / "report.json", str(pairs)), "--", str(program)]
    done = run_program(argv)
    assert done.returncode == 0, done.stderr
    assert "pair cell: cell: no loaded file exports a function no_size for its sizes" in done.stderr
    assert "pair cell: no function to acquire is left, so the pair is skipped" in done.stderr


@pytest.mark.parametrize("size", ["cell_size", "cell_size()", "cell_size(argument 1)", "(handle)"])
def test_values_that_are_not_sizes(size: str, tmp_path: Path) -> None:
    pair_file = tmp_path / "one.toml"
    pair_file.write_text(
        f'[x]\nacquire = {{function = "a", size = "{size}"}}\nrelease = {{function = "b"}}\n'
    )
    with pytest.raises(UsageError, match="is not understood"):
        read_pair_sets((str(pair_file),))
