"""Stack keys where the program walks by frame rules: one key for each stack, and none that covers two."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local.bpf import bpf_session_lines, plan_session
from memleak_android.host.wire.blocks import BlockKind, EvidenceFlag, Rows
from memleak_android.host.wire.payloads import decode_chunk, decode_evidence, decode_status
from tests.support.gcc import gcc
from tests.support.workloads import FLAGS, need, run

SOURCE = Path(__file__).parents[1] / "programs" / "exact_stacks.c"
PATHS, ROUNDS = 16, 1000


@dataclass(frozen=True)
class Seen:
    keys: Rows  # the key table at the end
    evidence: Rows
    records: int  # that came to the agent


def session_of(options: SessionOptions) -> Seen:
    lines = bpf_session_lines(options, plan_session(options))
    channel = LocalChannel([str(find_binary("memleakd", local_arch())), "bpf"])
    session = AgentSession("bpf", channel, lines)
    keys, evidence, records = list[Rows](), list[Rows](), 0
    try:
        for block in session.blocks():
            assert block.kind != BlockKind.ERROR, block.payload
            if block.kind == BlockKind.KEYS:
                keys.append(decode_chunk(block).rows)
            elif block.kind == BlockKind.EVIDENCE:
                evidence.append(decode_evidence(block.payload).rows)
            elif block.kind == BlockKind.STATUS:
                records = int(decode_status(block.payload)["evidence_records"])
    finally:
        session.close()
    return Seen(np.concatenate(keys), np.concatenate(evidence), records)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("bpf")
    target = tmp_path_factory.mktemp("exact") / "exact_stacks"
    gcc(*FLAGS, "-o", target, SOURCE)
    return str(target)


def test_one_key_for_each_stack(program: str) -> None:
    """Once the rules are learned neither what else lies in the frames nor the depth makes another key."""
    seen = session_of(SessionOptions(command=(program, str(ROUNDS))))
    keys = seen.keys
    assert int(keys["alloc_objects"].sum()) >= 2 * ROUNDS * PATHS
    often = keys[keys["alloc_objects"] >= ROUNDS]
    assert often["alloc_objects"].size == PATHS
    assert int(often["alloc_objects"].max()) <= 2 * ROUNDS, "a key covers two stacks"
    assert not often["flags"].any(), "a whole stack is called partial"
    assert seen.records < ROUNDS * PATHS / 2


def test_a_short_slice_bounds_the_walk(program: str) -> None:
    """The paths part beyond 512 bytes: a key that may look no further says that it saw part of the stack."""
    keys = session_of(SessionOptions(command=(program, str(ROUNDS)), stack_bytes=512)).keys
    assert int(keys["alloc_objects"][keys["flags"] == 0].sum()) < PATHS * ROUNDS / 10


def test_evidence_of_an_exact_key_is_a_few_words(program: str, tmp_path: Path) -> None:
    """And leads through the same frames as whole stacks do, one that aligns its stack among them."""
    evidence = session_of(SessionOptions(command=(program, "300"))).evidence
    few = evidence[(evidence["flags"] & np.uint16(EvidenceFlag.STACK_SPARSE)) != 0]
    assert len(np.unique(few["key"])) >= PATHS
    words, whole = (
        run("bpf", tmp_path, "--", program, "300", options=options) for options in ([], ["--every-stack"])
    )
    sites = sites_of(words.report)
    assert sites == sites_of(whole.report)
    assert len(sites) >= PATHS


def sites_of(report: dict[str, Any]) -> dict[tuple[tuple[str, str], ...], int]:
    """Blocks by frames, of whole stacks."""
    assert {site["end"] for site in report["sites"]} == {"ROOT"}
    return {
        tuple((frame["module"], frame["vaddr"]) for frame in site["frames"]): site["inuse_objects"]
        for site in report["sites"]
    }


@pytest.mark.proof
def test_rules_of_ended_programs_give_way(program: str) -> None:
    """300 programs fill the table of rules; the one that comes last is still walked by rules."""
    if shutil.which("sqlite3") is None:
        pytest.skip("no sqlite3 here")
    statements = (
        "create table t(a, b); insert into t values(1, 2); select count(*) from t group by a order by b"
    )
    loop = f"i=0; while [ $i -lt 300 ]; do sqlite3 :memory: '{statements}'; i=$((i+1)); done"
    command = ("/bin/sh", "-c", f"{loop} >/dev/null; exec {program} {ROUNDS}")
    keys = session_of(SessionOptions(command=command, follow=True)).keys
    often = keys[keys["alloc_objects"] >= ROUNDS]
    assert often["alloc_objects"].size == PATHS
    assert not often["flags"].any()
