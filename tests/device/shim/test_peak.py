"""The high-water mark against what a program is known to have held, and against valgrind's massif."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.gcc import gcc
from tests.support.workloads import PROGRAM, both_tracers, functions, need, run

SOURCE = Path(__file__).parents[1] / "programs" / "peaks_workload.c"
BLOCKS, KEPT, SPIKE = 500, 1009, 5003


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("peaks") / "peaks_workload"
    gcc("-g", "-O1", "-Wall", "-Werror", "-pthread", "-o", made, SOURCE)
    return made


def peak_of(tracer: str, folder: Path, *target: str | Path, options: tuple[str, ...] = ()) -> dict[str, Any]:
    peak: dict[str, Any] = run(tracer, folder, "--", *target, options=options).report["peak"]
    return peak


def space_of(peak: dict[str, Any], function: str) -> int:
    return sum(site["space"] for site in peak["sites"] if function in functions(site))


def warm_peak(tracer: str, folder: Path, program: Path, threads: int) -> dict[str, Any]:
    """The peak of a program that reaches it after two interval prints: by then the rules to walk by are known to BPF."""
    need(tracer)
    report, go = folder / "report.json", folder / "go"
    words = ["--tracer", tracer, "--interval", "100ms", "--json", report, "--", program, threads, go]
    argv = [*PROGRAM, *map(str, words)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        for awaited in ("warm", "allocations:", "allocations:"):
            assert any(line.strip().endswith(awaited) for line in iter(session.stdout.readline, ""))
        go.touch()
        _, errors = session.communicate(timeout=240)
    assert session.returncode == 0, errors
    peak: dict[str, Any] = json.loads(report.read_text())["peak"]
    return peak


@both_tracers
@pytest.mark.parametrize("threads", [0, 1, 8])
def test_peak_that_lasts_for_no_time(program: Path, tmp_path: Path, tracer: str, threads: int) -> None:
    peak = warm_peak(tracer, tmp_path, program, threads)
    n = max(threads, 1)
    known = BLOCKS * (KEPT + n * SPIKE)
    assert peak["space"] <= known + n * 20_000  # what libc itself holds, of each thread
    assert known <= peak["space"] + peak["bound"]
    assert peak["bound"] <= max(known // 200, 200_000)
    assert space_of(peak, "keep") == BLOCKS * KEPT
    spike = n * BLOCKS * SPIKE
    assert spike - peak["bound"] <= space_of(peak, "spike") <= spike
    assert not space_of(peak, "smaller_spike")


@both_tracers
def test_peak_is_massifs(program: Path, tmp_path: Path, tracer: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    massif_file = tmp_path / "massif.out"
    words = ["valgrind", "-q", "--tool=massif", "--peak-inaccuracy=0.0", f"--massif-out-file={massif_file}"]
    subprocess.run([*words, program, "0"], check=True, cwd=tmp_path)
    massif = max(
        int(held) for held in re.findall(r"^mem_heap_B=(\d+)", massif_file.read_text(), re.MULTILINE)
    )
    peak = peak_of(tracer, tmp_path, program, "0")
    assert peak["space"] <= massif <= peak["space"] + peak["bound"]


@both_tracers
def test_peak_of_the_program_that_a_shell_becomes(program: Path, tmp_path: Path, tracer: str) -> None:
    peak = peak_of(tracer, tmp_path, "sh", "-c", f"exec {program} 0")
    assert "bound" in peak
    assert space_of(peak, "keep") == BLOCKS * KEPT


def test_of_several_processes_it_is_the_snapshots(program: Path, tmp_path: Path) -> None:
    command = f"{program} 0 & {program} 0; wait"
    report = run("preload", tmp_path, "--", "sh", "-c", command, options=("--follow",)).report
    assert "bound" not in report.get("peak", {})


def test_sampled_it_is_the_snapshots(program: Path, tmp_path: Path) -> None:
    report = run("preload", tmp_path, "--", program, "0", options=("--sample-bytes", "4096")).report
    assert "bound" not in report.get("peak", {})
