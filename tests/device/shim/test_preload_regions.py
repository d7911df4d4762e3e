"""The ledger of mappings that the shim feeds, against what the program did and against the BPF tracer."""

import os
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.wire.blocks import Rows
from tests.support.preload_session import PreloadSession, run_preloaded
from tests.support.workloads import PROGRAMS, built, functions, need, run

PAGE, BASE = 4096, 0x200000000000
MMAP, MMAP64, MREMAP = 32, 33, 35
LOST_REGIONS = 12

# What regions_workload.c leaves of its parts: first page, pages, the call that made it.
PARTS = [
    (2, 3, MMAP), (8, 6, MMAP),
    (100, 2, MMAP), (108, 2, MMAP),
    (200, 2, MMAP), (202, 3, MMAP), (205, 3, MMAP),
    (299, 8, MMAP),
    (500, 2, MMAP),
    (600, 7, MREMAP), (700, 4, MREMAP),
    (820, 1, MMAP), (821, 4, MREMAP), (825, 1, MMAP),
    (840, 2, MMAP), (844, 4, MMAP), (860, 2, MREMAP),
    (920, 2, MMAP), (930, 2, MREMAP),
    (1010, 5, MMAP), (1020, 1, MMAP),
]  # fmt: skip


def workload(*flags: str | Path) -> Path:
    return built(PROGRAMS / "regions_workload", "-fno-builtin", *flags)


def regions(session: PreloadSession) -> Rows:
    """Rows of the ledger, by address."""
    rows = session.live[session.live["function"] >= MMAP]
    return rows[np.argsort(rows["address"])]


def in_pages(rows: Rows) -> list[tuple[int, int, int]]:
    first = (rows["address"].astype(np.int64) - BASE) // PAGE
    return list(zip(first.tolist(), (rows["size"] // PAGE).tolist(), rows["function"].tolist(), strict=True))


def ended_well(session: PreloadSession) -> None:
    """The program itself found nothing wrong, its errno above all."""
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 0


def heap_is_apart(session: PreloadSession) -> None:
    status, heap = session.status, session.live[session.live["function"] < MMAP]
    assert status["alloc_objects"] - status["free_objects"] == len(heap)
    assert status["alloc_bytes"] - status["free_bytes"] == heap["size"].sum()
    assert not set(session.keys["key"].tolist()) & set(regions(session)["key"].tolist())


def test_parts_of_every_kind() -> None:
    session = run_preloaded([workload(), "parts"], mmap=True)
    ended_well(session)
    rows = regions(session)
    assert in_pages(rows) == PARTS
    assert (rows["sequence"] == 0).all()
    assert set(rows["key"].tolist()) <= session.evidence_keys()
    assert not session.status["lost"].any()
    heap_is_apart(session)


def test_nothing_without_a_ledger() -> None:
    session = run_preloaded([workload(), "parts"])
    ended_well(session)
    assert len(regions(session)) == 0
    assert len(session.evidence_keys()) <= len(session.keys)


def test_the_same_as_the_bpf_tracer(tmp_path: Path) -> None:
    need("bpf")
    found = {}
    for tracer in ("bpf", "preload"):
        options = ["--mmap", "--show-allocs"]
        result = run(tracer, tmp_path, "--", workload(), "parts", options=options, codes=[0, 6])
        found[tracer] = sorted(
            (block["address"], block["size"], *functions(site))
            for site in result.sites("mmap")
            for block in site["blocks"]
        )
    assert len(found["preload"]) == len(PARTS)
    assert set(found["preload"]) <= set(found["bpf"])
    others = set(found["bpf"]) - set(found["preload"])
    assert not any("main" in calls for calls in others), "the loader's, before main"


def test_large_file_interface_and_every_call(tmp_path: Path) -> None:
    program = workload("-D_FILE_OFFSET_BITS=64")
    session = run_preloaded([program, "parts"], mmap=True)
    as_mmap64 = [(first, n, MMAP64 if function == MMAP else function) for first, n, function in PARTS]
    assert in_pages(regions(session)) == as_mmap64
    result = run("preload", tmp_path, "--", program, "parts", options=["--mmap", "--trace"])
    for call in ("mmap64(", "munmap(", "mremap("):
        assert call in result.out


def test_threads_that_unmap_each_other_s(tmp_path: Path) -> None:
    """A range goes from thread to thread at once: one call out of order leaves or loses a row."""
    session = run_preloaded([workload(), "threads", tmp_path / "kept"], mmap=True)
    ended_well(session)
    kept = sorted(int(line, 16) for line in (tmp_path / "kept").read_text().split())
    assert len(kept) >= 200
    assert session.status["lost"][LOST_REGIONS] == 0
    assert regions(session)["address"].tolist() == kept
    assert set(regions(session)["size"].tolist()) == {PAGE}


@pytest.mark.parametrize(("way", "rows"), [("signals", [(0, 7, MMAP)]), ("execs", PARTS)])
def test_handlers_that_map_and_an_exec(way: str, rows: list[tuple[int, int, int]]) -> None:
    """Handlers interrupt the recorder at its ring, too, and nothing is lost; an exec takes the mappings along."""
    session = run_preloaded([workload(), way], mmap=True)
    ended_well(session)
    assert way == "execs" or not session.status["lost"].any()
    assert in_pages(regions(session)) == rows


def test_a_fork_begins_with_an_empty_ledger() -> None:
    alone = run_preloaded([workload(), "forks"], mmap=True)
    ended_well(alone)
    assert in_pages(regions(alone)) == [(0, 4, MMAP)]
    session = run_preloaded([workload(), "forks"], mmap=True, follow=True)
    parent = regions(session)["pid"] == session.processes[0][0]
    assert in_pages(regions(session)[parent]) == [(0, 4, MMAP)]
    assert in_pages(regions(session)[~parent]) == [(50, 2, MMAP)]


def test_what_an_allocator_maps_is_its_own() -> None:
    allocator = built(PROGRAMS / "own_allocator", "-DPOOLS=0", "-shared", "-fPIC", "-fno-builtin")
    session = run_preloaded([workload(allocator), "parts"], mmap=True)
    ended_well(session)
    assert in_pages(regions(session)) == PARTS
