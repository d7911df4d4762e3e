"""The high-water mark against what a program is known to have held; massif's is compared in tests/proof."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.program_server import start_program
from tests.support.workloads import PROGRAMS, both_tracers, built, functions, need, run

BLOCKS, KEPT, SPIKE = 500, 1009, 5003


def program() -> Path:
    return built(PROGRAMS / "peaks_workload")


def space_of(peak: dict[str, Any], function: str) -> int:
    return sum(site["space"] for site in peak["sites"] if function in functions(site))


def warm_peak(tracer: str, folder: Path, threads: int) -> dict[str, Any]:
    """The peak of a program that reaches it after two interval prints: by then the rules to walk by are known to BPF."""
    need(tracer)
    report, go = folder / "report.json", folder / "go"
    words = ["--tracer", tracer, "--interval", "100ms", "--json", report, "--", program(), threads, go]
    with start_program(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as session:
        assert session.stdout is not None
        for awaited in ("warm", "allocations:", "allocations:"):
            assert any(line.strip().endswith(awaited) for line in iter(session.stdout.readline, ""))
        go.touch()
        said, _ = session.communicate(timeout=240)
    assert session.returncode == 0, said
    peak: dict[str, Any] = json.loads(report.read_text())["peak"]
    return peak


@both_tracers
@pytest.mark.parametrize("threads", [0, 8])
def test_peak_that_lasts_for_no_time(tmp_path: Path, tracer: str, threads: int) -> None:
    peak = warm_peak(tracer, tmp_path, threads)
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
def test_peak_of_the_program_that_a_shell_becomes(tmp_path: Path, tracer: str) -> None:
    peak = run(tracer, tmp_path, "--", "sh", "-c", f"exec {program()} 0").report["peak"]
    assert "bound" in peak
    assert space_of(peak, "keep") == BLOCKS * KEPT


@pytest.mark.parametrize("options", [("--follow",), ("--sample-bytes", "4096")])
def test_of_several_processes_or_sampled_it_is_the_snapshots(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = f"{program()} 0 & {program()} 0; wait" if options == ("--follow",) else f"exec {program()} 0"
    report = run("preload", tmp_path, "--", "sh", "-c", command, options=options).report
    assert "bound" not in report.get("peak", {})
