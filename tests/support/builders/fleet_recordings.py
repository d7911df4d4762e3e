"""Many recordings out of some real ones: each holds a random part of its blocks, under another origin."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memleak_android.host.recording.file import FILE_HEADER, Recording
from memleak_android.host.wire.blocks import HELLO, NO_TRACE, STATUS, Block, BlockKind, Lost, encode_block
from memleak_android.host.wire.payloads import decode_chunk, decode_text, encode_chunk, encode_text
from tests.support.builders.growing_recording import wait_for_snapshot
from tests.support.program_server import run_program, start_program
from tests.support.workloads import build

SOURCE = Path(__file__).resolve().parents[1] / "programs" / "shop.c"
VERSIONS = ("1.9", "1.10", "2.0-beta")  # as people count
SEEDS = range(3)
CALLERS = 64  # of many_callers.c


@dataclass(frozen=True, slots=True)
class Origin:
    version: str
    abi: str
    api_level: int
    model: str


def record_shop(folder: Path) -> dict[tuple[str, str], list[Path]]:
    """Real recordings by version and ABI. The arm ones are of a program that takes the way that only arm takes."""
    found: dict[tuple[str, str], list[Path]] = {}
    for number, version in enumerate(VERSIONS, 1):
        program = folder / f"build{number}" / "shop"
        program.parent.mkdir(parents=True)
        build("shop", program.parent, f"-DVERSION={number}")
        for abi, words in (("x86_64", []), ("arm64-v8a", ["arm"])):
            found[version, abi] = [
                _record(folder / f"{number}-{abi}-{seed}.base", [program, seed, *words]) for seed in SEEDS
            ]
    return found


def _record(path: Path, command: Sequence[object]) -> Path:
    words = ["record", "-q", "--tracer", "preload", "-o", path, "--", *command]
    done = run_program(list(map(str, words)))
    if done.returncode:
        pytest.fail(done.stderr)
    return path


def write_farm(
    bases: Mapping[tuple[str, str], Sequence[Path]], into: Path, count: int, seed: int = 7
) -> list[Origin]:
    """`count` recordings farm/NUMBER.memleak. Which version and device each has goes round; the blocks are drawn."""
    random = np.random.default_rng(seed)
    into.mkdir(parents=True)
    read = {base: list(_blocks(base)) for paths in bases.values() for base in paths}
    origins = []
    for i in range(count):
        version, abi = VERSIONS[i % len(VERSIONS)], ("x86_64", "arm64-v8a")[i // 3 % 2]
        origin = Origin(version, abi, (30, 33, 34)[i // 6 % 3], f"model {i // 18 % 5}")
        paths = bases[version, abi]
        blocks = read[paths[int(random.integers(len(paths)))]]
        keep = float(random.uniform(0.7, 1.0))
        _write(into / f"{i:05}.memleak", _variant(blocks, origin, keep, random))
        origins.append(origin)
    return origins


def _blocks(path: Path) -> Iterator[Block]:
    with closing(Recording(path)) as recording:
        yield from (block for _, block in recording.blocks())


def _variant(
    blocks: Sequence[Block], origin: Origin, keep: float, random: np.random.Generator
) -> Iterator[Block]:
    live = next(decode_chunk(block) for block in blocks if block.kind == BlockKind.LIVE)
    kept = random.random(len(live.rows)) < keep
    for block in blocks:
        if block.kind in (BlockKind.LIVE, BlockKind.SITES):
            chunk = decode_chunk(block)
            yield encode_chunk(BlockKind(block.kind), replace(chunk, rows=chunk.rows[kept]))
        else:
            yield _with(block, asdict(origin))


def _write(path: Path, blocks: Iterator[Block]) -> None:
    path.write_bytes(FILE_HEADER + b"".join(map(encode_block, blocks)))


def record_abandoned(folder: Path) -> Path:
    """A real recording whose session was killed once it held all: its stacks are still to be unwound."""
    program, path = build("many_callers", folder), folder / "abandoned.base"
    words = ["record", "-q", "--tracer", "preload", "-o", path, "--", program]
    session = start_program(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert session.stdout.readline() == b"ready\n"
        wait_for_snapshot(path, CALLERS)
    finally:
        session.kill()
        session.communicate()
    return path


def write_copies(base: Path, into: Path, count: int) -> None:
    """The same stacks under other models, so that no two recordings have the same bytes."""
    into.mkdir(parents=True)
    blocks = list(_blocks(base))
    for i in range(count):
        _write(into / f"{i:05}.memleak", (_with(block, {"model": f"model {i}"}) for block in blocks))


def _with(block: Block, facts: Mapping[str, Any]) -> Block:
    """Of a SESSION block with other facts; others are as they were."""
    if block.kind != BlockKind.SESSION:
        return block
    return encode_text(BlockKind.SESSION, json.dumps(json.loads(decode_text(block.payload)) | dict(facts)))


def without_a_stack(path: Path, into: Path) -> None:
    """A copy whose first block has none."""

    def changed(block: Block) -> Block:
        if block.kind != BlockKind.SITES:
            return block
        chunk = decode_chunk(block)
        chunk.rows["trace"][:1] = NO_TRACE
        return encode_chunk(BlockKind.SITES, chunk)

    _write(into, map(changed, _blocks(path)))


def with_losses(path: Path, into: Path, losses: Mapping[Lost, int], realtime_s: int = 0) -> None:
    """A copy whose tracer has lost so much; realtime_s: what its clock said as it began, 0 = as it did."""

    def changed(block: Block) -> Block:
        layout = {BlockKind.STATUS: STATUS, BlockKind.HELLO: HELLO}.get(BlockKind(block.kind))
        if layout is None:
            return block
        row = np.frombuffer(block.payload, layout).copy()
        if block.kind == BlockKind.STATUS:
            row["lost"][0, list(losses)] = list(losses.values())
        elif realtime_s:
            row["realtime_ns"] = realtime_s * 10**9
        return Block(block.kind, row.tobytes())

    _write(into, map(changed, _blocks(path)))
