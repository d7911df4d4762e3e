"""The BPF tracer as on kernels without a ring buffer: hash maps, and perf events that carry registers and stack.

Forced on this kernel; untried below 5.10.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.workloads import Run, built, functions, run

OLD = "--perf-events"


def by_stack(result: Run) -> list[tuple[tuple[str, ...], int, int, str]]:
    return sorted(
        (tuple(functions(site)), site["inuse_space"], site["inuse_objects"], site["end"])
        for site in result.report["sites"]
    )


def both_ways(folder: Path, *target: str | Path, **more: Any) -> tuple[Run, Run]:
    return run("bpf", folder, *target, **more), run("bpf", folder, *target, options=[OLD], **more)


@pytest.mark.parametrize(
    "words",
    [
        ("deep_chain",),
        *(
            pytest.param(w, marks=pytest.mark.proof)
            for w in (("failed_calls",), ("plain_leak", "23", "1009"), ("two_arenas",))
        ),
    ],
    ids=lambda words: words[0],
)
def test_the_same_sites(words: tuple[str, ...], tmp_path: Path) -> None:
    new, old = both_ways(tmp_path, "--", built(words[0]), *words[1:], codes=[0, 6])
    assert by_stack(old) == by_stack(new)
    assert old.totals["alloc_objects"] == new.totals["alloc_objects"]


def test_whole_stacks_of_a_real_program(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    new, old = both_ways(tmp_path, "--", "/usr/bin/git", "version", "--build-options")
    assert by_stack(old) == by_stack(new) != []
    assert {site["end"] for site in old.report["sites"]} == {"ROOT"}


def test_every_call_is_recorded(tmp_path: Path) -> None:
    result = run("bpf", tmp_path, "--", built("plain_leak"), "23", "1009", options=[OLD, "--trace"])
    assert result.out.count("malloc(1009)") == 23
