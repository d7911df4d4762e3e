"""The shim's stack keys: one for one stack, from its first allocation on; evidence of a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memleak_android.host.wire.blocks import EvidenceFlag, Rows
from tests.support.gcc import gcc
from tests.support.preload_session import PreloadSession, run_preloaded
from tests.support.workloads import run

HERE = Path(__file__).resolve().parents[1] / "programs"
EXACT = np.uint64(2)  # ML_KEY_IS_EXACT of device/preload/segment/segment.h
PATHS, ROUNDS = 8, 400


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("keys") / "stack_keys"
    flags = ["-O2", "-fomit-frame-pointer", "-fno-builtin", "-w"]
    gcc(*flags, HERE / "stack_keys_workload.c", "-o", program)
    return program


@pytest.fixture(scope="module")
def session(workload: Path) -> PreloadSession:
    return run_preloaded([workload])


def kept(session: PreloadSession) -> Rows:
    sizes = session.live["size"]
    return session.live[(sizes >= 1000) & (sizes < 1000 + PATHS)]


def test_a_path_has_one_key_whatever_lies_on_the_stack(session: PreloadSession) -> None:
    blocks = kept(session)
    assert len(blocks) == PATHS * ROUNDS
    pairs = set(zip(blocks["size"].tolist(), blocks["key"].tolist(), strict=True))
    assert len(pairs) == PATHS
    assert len({key for _, key in pairs}) == PATHS
    assert ((blocks["key"] & EXACT) != 0).all()


def test_its_evidence_is_a_few_words(session: PreloadSession) -> None:
    keys = set(kept(session)["key"].tolist())
    rows = np.concatenate([batch.rows for batch in session.evidence])
    of_ours = rows[np.isin(rows["key"], list(keys))]
    assert set(of_ours["key"].tolist()) == keys
    assert ((of_ours["flags"] & np.uint16(EvidenceFlag.STACK_SPARSE)) != 0).any()


def test_the_same_sites_as_by_whole_slices(workload: Path, tmp_path: Path) -> None:
    few, whole = (
        run("preload", tmp_path, "--", workload, options=options) for options in ([], ["--every-stack"])
    )
    assert sites_of(few.report) == sites_of(whole.report)


def sites_of(report: dict[str, Any]) -> dict[tuple[tuple[str, str], ...], int]:
    """Blocks by frames."""
    sites: dict[tuple[tuple[str, str], ...], int] = {}
    for site in report["sites"]:
        frames = tuple((frame["module"], frame["vaddr"]) for frame in site["frames"])
        sites[frames] = sites.get(frames, 0) + site["inuse_objects"]
    return sites
