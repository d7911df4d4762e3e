"""Stack keys where the program walks by frame rules: one key for each stack, and none that covers two."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.payloads import decode_chunk, decode_status
from memleak_android.host.tracers.agent import AgentSession
from memleak_android.host.tracers.base import SessionOptions
from memleak_android.host.tracers.bpf import bpf_session_lines, plan_session
from memleak_android.host.tracers.prebuilt import find_binary, local_arch
from memleak_android.host.wire import BlockKind, Rows
from tests.support.workloads import FLAGS, need

SOURCE = Path(__file__).parent / "exact_stacks.c"
PATHS, ROUNDS = 16, 1000


def keys_of(options: SessionOptions) -> tuple[Rows, int]:
    """(rows of the key table at the end, records of evidence that came)."""
    lines = bpf_session_lines(options, plan_session(options))
    session = AgentSession("bpf", [str(find_binary("memleakd", local_arch())), "bpf"], lines)
    rows, records = list[Rows](), 0
    try:
        for block in session.blocks():
            assert block.kind != BlockKind.ERROR, block.payload
            if block.kind == BlockKind.KEYS:
                rows.append(decode_chunk(block).rows)
            elif block.kind == BlockKind.STATUS:
                records = int(decode_status(block.payload)["evidence_records"])
    finally:
        session.close()
    return np.concatenate(rows), records


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("bpf")
    target = tmp_path_factory.mktemp("exact") / "exact_stacks"
    subprocess.run(["cc", *FLAGS, "-o", target, SOURCE], check=True)
    return str(target)


def test_one_key_for_each_stack(program: str) -> None:
    """Once the rules are learned neither what else lies in the frames nor the depth makes another key."""
    keys, records = keys_of(SessionOptions(command=(program, str(ROUNDS))))
    assert int(keys["alloc_objects"].sum()) >= 2 * ROUNDS * PATHS
    often = keys[keys["alloc_objects"] >= ROUNDS]
    assert often["alloc_objects"].size == PATHS
    assert int(often["alloc_objects"].max()) <= 2 * ROUNDS, "a key covers two stacks"
    assert not often["flags"].any(), "a whole stack is called partial"
    assert records < ROUNDS * PATHS / 2


def test_a_short_slice_bounds_the_walk(program: str) -> None:
    """The paths part beyond 512 bytes: a key that may look no further says that it saw part of the stack."""
    keys, _ = keys_of(SessionOptions(command=(program, str(ROUNDS)), stack_bytes=512))
    assert int(keys["alloc_objects"][keys["flags"] == 0].sum()) < PATHS * ROUNDS / 10
