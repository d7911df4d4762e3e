"""`report --jobs`: several threads unwind what an unfinished recording holds, and find the same."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.cli import run
from memleak_android.host.errors import ExitCode
from memleak_android.host.wire.blocks import BlockKind
from memleak_android.host.wire.payloads import encode_text
from memleak_android.unwind.walk import batch
from tests.support.builders.blocks import key_rows, live_rows, short_recording, snapshot, status

STACKS = range(1, 41)


def report(recording: Path, jobs: int, capfd: pytest.CaptureFixture[str]) -> Any:
    assert run(["report", str(recording), "--format", "json", "--jobs", str(jobs)]) == ExitCode.INCOMPLETE
    return json.loads(capfd.readouterr().out)


def test_the_same_report_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pools: list[int] = []  # the threads of each pool that the unwinder makes
    monkeypatch.setattr(batch, "ThreadPoolExecutor", lambda n: pools.append(n) or ThreadPoolExecutor(n))
    blocks = snapshot(
        live_rows(*({"sequence": n, "key": n, "size": n} for n in STACKS)),
        key_rows(*({"key": n, "alloc_objects": 1, "alloc_bytes": n} for n in STACKS)),
    )
    counts = status(alloc_objects=len(STACKS), alloc_bytes=sum(STACKS))
    vaddrs = {n: 0x1000 + 16 * n for n in STACKS}
    cfi = encode_text(BlockKind.SESSION, '{"unwind": "cfi"}')
    recording = short_recording(tmp_path / "a.memleak", cfi, *blocks, vaddrs=vaddrs, counts=counts)
    alone = report(recording, 1, capfd)
    assert pools == [] and len(alone["sites"]) == len(STACKS)
    assert alone["totals"]["inuse_space"] == sum(STACKS)
    assert report(recording, 3, capfd) == alone
    assert pools == [3]
