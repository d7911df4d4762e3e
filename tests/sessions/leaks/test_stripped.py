"""A stripped program against its named twin: a function is one place, whatever call in it allocates."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracles.symbols import need
from tests.support.workloads import ROOT, run

Amounts = list[tuple[int, int, int]]


def places(tracer: str, program: Path) -> tuple[dict[str, Any], Amounts]:
    """The report, and stacks, blocks and bytes of the user's places."""
    report = run(tracer, program.parent, "--", program).report
    found = [one for one in report["places"] if one["kind"] == "user"]
    return report, sorted((one["stacks"], one["objects"], one["space"]) for one in found)


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_places_are_those_of_the_named_twin(tracer: str, tmp_path: Path) -> None:
    named, stripped = tmp_path / "named", tmp_path / "stripped"
    words = [need("gcc"), "-O1", "-o", named, ROOT / "tests/sessions/leaks/stripped.c"]
    subprocess.run(words, check=True)
    subprocess.run([need("strip"), "-o", stripped, named], check=True)
    _, expected = places(tracer, named)
    report, found = places(tracer, stripped)
    assert found == expected and [stacks for stacks, *_ in found] == [2, 4]
    nm = subprocess.run([need("nm"), named], capture_output=True, text=True, check=True).stdout.split()
    starts = {name: int(nm[nm.index(name) - 2], 16) for name in ("decode", "copy")}
    frames = [site["frames"][1] for site in report["sites"] if site["kind"] == "user"]
    assert {int(one["vaddr"], 16) - one["offset"] for one in frames} == set(starts.values())
    assert {one["function"] for one in frames} == {""}
