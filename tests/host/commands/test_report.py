"""Recordings whose blocks are whole but lie: a report or a typed error, in bounded time, whatever they say."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.cli import run
from memleak_android.host.errors import ExitCode, MemleakError
from memleak_android.host.recording.file import Recording
from memleak_android.host.stacks.modules import LocalFiles, own_vdso
from memleak_android.host.wire.blocks import Block, BlockKind, ProcessEvent
from memleak_android.host.wire.payloads import encode_text
from memleak_android.host.wire.python_frames import PythonCode, encode_code
from memleak_android.unwind.errors import UnwindError
from memleak_android.unwind.walk import batch
from tests.support.builders import blocks as made
from tests.support.builders.analysed import profile_of
from tests.support.builders.blocks import key_rows, live_rows, short_recording, snapshot, status
from tests.support.written import written

MAPS = """\
00400000-00401000 r-xp 00000000 08:01 0 /usr/bin/env
00500000-00501000 r-xp 00000000 08:01 1 [vdso]
00600000-00601000 r-xp 00000000 08:01 2 /nonexistent
"""
SESSION = '{"tracer": "bpf", "command": "x", "pid": 100, "coverage": {}, "sample_bytes": 0}'


CODE = PythonCode(100, 1, "serve", "/srv/app.py", 7, 2, b"\xf8\x02\xd8\x04\x10")


def raw_blocks() -> list[Block]:
    forked = made.process(ProcessEvent.FORK, pid=200, parent=100, timestamp_ns=3 * 10**9)
    stacks = (
        made.evidence_record(sequence=n, key=n // 2, pc=0x400800 + 0x80000 * n, stack=bytes(range(256)))
        for n in range(1, 6)
    )
    behind = made.evidence_record(
        sequence=6,
        key=3,
        stack=bytes(64),
        interrupted=(0x9000, bytes(range(64))),
        python=[(0x7FFF0010, 1, 4), (0, 9, 2)],
    )
    live = ({"sequence": n, "key": n // 2, "sample_bytes": 4096 * (n % 2)} for n in range(1, 9))
    keys = ({"key": n, "alloc_objects": 5, "alloc_bytes": 50} for n in range(5))
    return [
        made.hello(),
        encode_text(BlockKind.SESSION, SESSION),
        made.maps(MAPS),
        Block(BlockKind.PROCESS, forked),
        Block(BlockKind.MAPPINGS, made.mapping(0x400000, 0x401000, "/bin/sh", timestamp_ns=3 * 10**9)),
        Block(BlockKind.PYTHON_CODE, encode_code(CODE)),
        made.evidence(*stacks, behind),
        *made.snapshot(made.live_rows(*live), made.key_rows(*keys)),
        made.status(alloc_objects=10, alloc_bytes=100),
        made.end(),
    ]


def read(path: Path) -> None:
    out = path.with_name("out.memleak")
    profile = profile_of(path, View(show_allocs=True), out, LocalFiles(False, own_vdso()))
    for name in ("text", "json"):
        written(name, profile, show_allocs=name == "json")


def finished(folder: Path) -> list[Block]:
    raw = made.write_recording(folder / "raw.memleak", raw_blocks())
    profile_of(raw, finished=folder / "finished.memleak")
    with closing(Recording(folder / "finished.memleak")) as recording:
        return [block for _, block in recording.blocks()]


def mutations(blocks: list[Block], seed: int, count: int) -> Iterator[list[Block]]:
    """One block with some of its words replaced by extremes, or shortened; sometimes others are missing."""
    rng = random.Random(seed)
    for _ in range(count):
        result = [block for block in blocks if rng.random() > 0.03]
        victim = rng.randrange(len(result))
        payload = bytearray(result[victim].payload)
        for _ in range(rng.choice([1, 1, 3, 9])):
            width = rng.choice([2, 4, 8])
            at = rng.randrange(0, max(1, min(len(payload), rng.choice([32, 150, 10**6]))), width)
            value = rng.choice([0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), rng.getrandbits(8 * width)])
            payload[at : at + width] = value.to_bytes(width, "little")
        size = len(result[victim].payload)
        keep = size if rng.random() > 0.1 else rng.randrange(0, size + 1, 8)
        result[victim] = Block(result[victim].kind, bytes(payload[:keep]))
        yield result


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("is_finished", [False, True])
def test_lying_blocks(tmp_path: Path, is_finished: bool) -> None:
    blocks = finished(tmp_path) if is_finished else raw_blocks()
    n_reports = 0
    for n, mutated in enumerate(mutations(blocks, seed=1, count=250)):
        path = made.write_recording(tmp_path / "a.memleak", mutated)
        try:
            read(path)
            n_reports += 1
        except (MemleakError, UnwindError):
            pass
        except Exception as error:
            error.add_note(f"mutation {n} of the {'finished' if is_finished else 'raw'} recording")
            raise
    assert n_reports > 200, "nearly every such recording still has something to report"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "session", ["{}", '{"pid": "x", "command": {"a": 1}, "coverage": {"functions": 7}, "sample_bytes": null}', '{"pid": 1e99}', "[" * 9000]
)  # fmt: skip
def test_session_text_of_any_shape(tmp_path: Path, session: str) -> None:
    blocks = [made.hello(), encode_text(BlockKind.SESSION, session + " " * (-len(session) % 8)), made.end()]
    read(made.write_recording(tmp_path / "a.memleak", blocks))


def test_modules_that_name_the_machines_own_special_files(tmp_path: Path) -> None:
    names = ["/proc/kcore", "/dev/zero", "/proc/self/mem", "relative", "", "/etc", "\x00"]
    modules = ", ".join(f'{{"path": "{name}", "build_id": ""}}'.replace("\x00", "\\u0000") for name in names)
    blocks = [made.hello(), encode_text(BlockKind.MODULES, f"[{modules}, 7, null]"), made.end()]
    read(made.write_recording(tmp_path / "a.memleak", blocks))


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
