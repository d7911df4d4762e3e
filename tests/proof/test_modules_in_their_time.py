"""Short-lived processes and libraries that reuse each other's addresses: every stack named in the right module."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.workloads import Run, both_tracers, build, built, functions, run

THOUSAND = [pytest.mark.proof, pytest.mark.timeout(400)]


def two_plugins(folder: Path) -> list[Path]:
    return [
        build(
            "plugin",
            folder,
            "-shared",
            "-fPIC",
            f"-DLEAK=leak_{which}",
            f"-DLEAK_BYTES={size}",
            output=f"lib{which}.so",
        )
        for which, size in (("one", 1013), ("two", 1019))
    ]


def held_by_plugins(result: Run) -> Counter[tuple[str, str]]:
    """Bytes by the leaking function and the module it is named in."""
    found = Counter[tuple[str, str]]()
    for site in result.sites():
        if "leak" in functions(site):
            found[functions(site)[1], Path(site["frames"][1]["module"]).name] += site["inuse_space"]
    return found


@both_tracers
def test_one_library_after_another_at_the_same_address(tracer: str, tmp_path: Path) -> None:
    result = run(tracer, tmp_path, "--", built("one_after_another"), *two_plugins(tmp_path))
    assert result.report["target"]["exit_status"] == 0, "they were not at the same address"
    assert held_by_plugins(result) == {
        ("leak_one", "libone.so"): 3 * 1013,
        ("leak_two", "libtwo.so"): 3 * 1019,
    }


@both_tracers
def test_libraries_come_and_go_among_busy_threads(tracer: str, tmp_path: Path) -> None:
    result = run(tracer, tmp_path, "--", built("threads_in_plugins"), "50", *two_plugins(tmp_path))
    assert result.report["target"]["exit_status"] == 0
    leaks = 50 * 4 * 3
    assert held_by_plugins(result) == {
        ("leak_one", "libone.so"): leaks * 1013,
        ("leak_two", "libtwo.so"): leaks * 1019,
    }


@pytest.mark.parametrize(
    ("tracer", "processes"),
    [
        ("bpf", 50),
        ("preload", 50),
        pytest.param("bpf", 1000, marks=THOUSAND),
        pytest.param("preload", 1000, marks=THOUSAND),
    ],
)
def test_processes_of_5_ms(tracer: str, processes: int, tmp_path: Path) -> None:
    program = build("many_processes", tmp_path)
    result = run(tracer, tmp_path, "--", program, str(processes), options=["--follow"], timeout_s=390)
    assert result.amounts() == (processes * 7 * 1009, processes * 7)
    assert result.totals["unattributed_objects"] == 0
    named = Counter[tuple[str, str, str]]()
    for site in result.sites():
        frame = site["frames"][1]
        named[frame["function"], Path(frame["module"]).name, site["end"]] += site["inuse_objects"]
    assert named == {("leak_in_child", "many_processes", "ROOT"): processes * 7}
