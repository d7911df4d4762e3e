"""Stack keys where stacks are walked by frame rules: one key for each stack, and none that covers two."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memleak_android.host.wire.blocks import EvidenceFlag, Rows
from tests.support.preload_session import PreloadSession, run_by_bpf, run_preloaded
from tests.support.workloads import PROGRAMS, both_tracers, built, need, run

PATHS, ROUNDS = 16, 1000  # exact_stacks.c
EXACT = np.uint64(2)  # ML_KEY_IS_EXACT of device/preload/segment/segment.h


def program() -> str:
    return str(built(PROGRAMS / "exact_stacks"))


def bpf_session(*command: str, **options: int) -> PreloadSession:
    need("bpf")
    return run_by_bpf(command, **options)


def sparse_keys(session: PreloadSession) -> set[int]:
    """Those whose evidence is a few words."""
    rows = np.concatenate([batch.rows for batch in session.evidence])
    return set(rows["key"][(rows["flags"] & np.uint16(EvidenceFlag.STACK_SPARSE)) != 0].tolist())


def check_one_key_for_each_stack(keys: Rows) -> None:
    often = keys[keys["alloc_objects"] >= ROUNDS]
    assert often["alloc_objects"].size == PATHS
    assert int(often["alloc_objects"].max()) <= 2 * ROUNDS, "a key covers two stacks"
    assert not often["flags"].any(), "a whole stack is called partial"


def test_one_key_for_each_stack_once_the_rules_are_learned() -> None:
    """Neither what else lies in the frames nor the depth makes another key."""
    session = bpf_session(program(), str(ROUNDS))
    assert int(session.keys["alloc_objects"].sum()) >= 2 * ROUNDS * PATHS
    check_one_key_for_each_stack(session.keys)
    assert int(session.status["evidence_records"]) < ROUNDS * PATHS / 2
    assert len(sparse_keys(session)) >= PATHS


def test_one_key_for_each_stack_from_its_first_allocation_on() -> None:
    session = run_preloaded([program(), str(ROUNDS)])
    blocks = session.live[(session.live["size"] >= 1000) & (session.live["size"] < 1000 + PATHS)]
    assert len(blocks) == 2 * PATHS * ROUNDS
    pairs = set(zip(blocks["size"].tolist(), blocks["key"].tolist(), strict=True))
    keys = {key for _, key in pairs}
    assert len(pairs) == len(keys) == PATHS
    assert ((blocks["key"] & EXACT) != 0).all()
    assert keys <= session.evidence_keys() and keys & sparse_keys(session)


def test_a_short_slice_bounds_the_walk() -> None:
    """The paths part beyond 512 bytes: a key that may look no further says that it saw part of the stack."""
    keys = bpf_session(program(), str(ROUNDS), stack_bytes=512).keys
    assert int(keys["alloc_objects"][keys["flags"] == 0].sum()) < PATHS * ROUNDS / 10


@both_tracers
def test_the_same_sites_as_by_whole_slices(tracer: str, tmp_path: Path) -> None:
    """A few words lead through the same frames, one that aligns its stack among them."""
    words, whole = (
        sites_of(run(tracer, tmp_path, "--", program(), "300", options=options).report)
        for options in ([], ["--every-stack"])
    )
    assert words == whole and len(words) >= PATHS


def sites_of(report: dict[str, Any]) -> dict[tuple[tuple[str, str], ...], int]:
    """Blocks by frames, of whole stacks."""
    assert {site["end"] for site in report["sites"]} == {"ROOT"}
    return {
        tuple((frame["module"], frame["vaddr"]) for frame in site["frames"]): site["inuse_objects"]
        for site in report["sites"]
    }


@pytest.mark.proof
@pytest.mark.changes_all_code
def test_rules_of_ended_programs_give_way() -> None:
    """300 programs fill the table of rules; the one that comes last is still walked by rules."""
    if shutil.which("sqlite3") is None:
        pytest.skip("no sqlite3 here")
    statements = (
        "create table t(a, b); insert into t values(1, 2); select count(*) from t group by a order by b"
    )
    loop = f"i=0; while [ $i -lt 300 ]; do sqlite3 :memory: '{statements}'; i=$((i+1)); done"
    command = ("/bin/sh", "-c", f"{loop} >/dev/null; exec {program()} {ROUNDS}")
    check_one_key_for_each_stack(bpf_session(*command, follow=True).keys)
