"""Allocators whose operator new, or mallocx, does not come by malloc: every route counts what it takes, and what it gives back."""

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import run_attached
from tests.support.workloads import PROGRAMS, build, run

SOURCE = PROGRAMS / "own_operators.cc"
ROUNDS = 7
HELD = {
    **dict.fromkeys((101, 211, 307, 401, 509, 512, 601, 701, 809), ROUNDS),
    **dict.fromkeys((60001, 70001, 80001, 90001, 99991), 0),
}
INSTALLED = ("tcmalloc_minimal", "jemalloc", "mimalloc")


def allocators() -> list[str]:
    """Ours, and those of the machine."""
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout.split()
    return ["own", *(f"lib{name}" for name in INSTALLED if any(f"/lib{name}.so" in word for word in found))]


@pytest.fixture(scope="module", params=allocators())
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The program and its plugin, linked with an allocator."""
    folder = tmp_path_factory.mktemp(request.param)
    plugin = build(SOURCE, folder, "-DPLUGIN", "-shared", "-fPIC", output="plugin.so")
    if request.param == "own":
        library = build(SOURCE, folder, "-DALLOCATOR", "-shared", "-fPIC", output="liballocator.so")
    else:
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.split()
        library = Path(next(word for word in listed if f"/{request.param}.so" in word))
    link = ("-Wl,--no-as-needed", library, f"-Wl,-rpath,{folder}", "-ldl")
    return [build(SOURCE, folder, *map(str, link), output="program"), plugin]


def held(report: dict[str, Any]) -> dict[int, int]:
    found = Counter[int]()
    for site in report["sites"]:
        found[site["inuse_space"] // site["inuse_objects"]] += site["inuse_objects"]
    return {size: found[size] for size in HELD}


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_from_the_start(command: list[Path], tracer: str, tmp_path: Path) -> None:
    assert held(run(tracer, tmp_path, "--", *command).report) == HELD


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline", "bpf"])
def test_attached(command: list[Path], tracer: str, tmp_path: Path) -> None:
    code, _, report = run_attached(tracer, [*command, "waits"], tmp_path / "report.json")
    assert code == 0
    assert held(report) == HELD
