"""`report --jobs`: several threads unwind what an unfinished recording holds, and find the same."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.cli import run
from memleak_android.unwind.walk import batch
from tests.support.builders.blocks import (
    end,
    evidence,
    evidence_record,
    hello,
    key_rows,
    live_rows,
    maps,
    snapshot,
    status,
    write_recording,
)

MAPS = "00400000-00500000 r-xp 00000000 08:01 0 /nonexistent/program\n"
STACKS = range(1, 41)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads of each pool that the unwinder makes."""
    made: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, threads: int) -> None:
            made.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(batch, "ThreadPoolExecutor", Pool)
    return made


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    blocks = [
        evidence(*(evidence_record(sequence=n, key=n, pc=0x401000 + 16 * n) for n in STACKS)),
        *snapshot(
            live_rows(*({"sequence": n, "key": n, "size": n} for n in STACKS)),
            key_rows(*({"key": n, "alloc_objects": 1, "alloc_bytes": n} for n in STACKS)),
        ),
    ]
    counts = status(alloc_objects=len(STACKS), alloc_bytes=sum(STACKS))
    return write_recording(tmp_path / "a.memleak", [hello(), maps(MAPS), *blocks, counts, end()])


def report(recording: Path, jobs: int, capfd: pytest.CaptureFixture[str]) -> Any:
    assert run(["report", str(recording), "--format", "json", "--jobs", str(jobs)]) == 0
    return json.loads(capfd.readouterr().out)


def test_the_same_report_by_several_threads(
    recording: Path, pools: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    alone = report(recording, 1, capfd)
    assert (
        pools == [] and alone["totals"]["inuse_space"] == sum(STACKS) and len(alone["sites"]) == len(STACKS)
    )
    assert report(recording, 3, capfd) == alone
    assert pools == [3]
