"""The agent's ledger of mappings against a model of single pages, for calls in any order that may arrive."""

import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.gcc import DEVICE, sanitized
from tests.support.workloads import PROGRAMS

PAGE, N_PAGES = 4096, 24
END = 10**9
MALLOC, MMAP, MUNMAP, SHMAT = 1, 32, 34, 36
EVENT = np.dtype(
    [
        ("timestamp_ns", "<u8"), ("address", "<u8"), ("size", "<u8"), ("key", "<u8"), ("old_address", "<u8"),
        ("pid", "<u4"), ("tid", "<u4"), ("function", "<u4"), ("error", "<i4"),
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, agent = tmp_path_factory.mktemp("ledger"), DEVICE / "agent"
    paths = [
        PROGRAMS / "parts" / "regions_replay.c",
        agent / "evidence" / "regions.c",
        agent / "shim" / "regions.c",
    ]
    return sanitized(folder / "replay", "address,undefined", *paths)


def random_calls(rng: np.random.Generator, n: int, n_pages: int = N_PAGES) -> np.ndarray:
    """In the order of their times, 10, 20 … ns."""
    calls = np.zeros(n, EVENT)
    calls["timestamp_ns"] = 10 * np.arange(1, n + 1)
    first = rng.integers(1, n_pages, n)
    calls["address"] = PAGE * first
    calls["size"] = np.maximum(1, PAGE * rng.integers(1, 9, n) - rng.choice([0, 4095], n))
    calls["function"] = rng.choice([MMAP, MUNMAP], n)
    calls["pid"] = 7
    return calls


def model(calls: np.ndarray) -> dict[int, int]:
    """Page → time of the call that mapped it."""
    pages: dict[int, int] = {}
    for call in calls:
        start = int(call["address"]) // PAGE
        for page in range(start, start - (-int(call["size"]) // PAGE)):
            pages.pop(page, None)
            if call["function"] in (MMAP, SHMAT):
                pages[page] = int(call["timestamp_ns"])
    return pages


def replayed(program: Path, records: np.ndarray, most_rounds: int = 1) -> dict[int, int]:
    """most_rounds: of applying what the last reading found; more than one are so many."""
    run = subprocess.run([program], input=records.tobytes(), capture_output=True, check=True)
    rounds = int(run.stderr or 1)
    assert rounds <= most_rounds and (rounds > 1) == (most_rounds > 1), rounds
    rows = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert rows == sorted(rows)
    assert all(start < end for start, end, _ in rows)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(rows))
    return {page: time for start, end, time in rows for page in range(start // PAGE, end // PAGE)}


def reading(begins_ns: int, *parts: np.ndarray) -> np.ndarray:
    """Events of one reading of the rings that began at this time."""
    record = np.zeros(1, EVENT)
    record["timestamp_ns"] = begins_ns
    return np.concatenate([record, *parts])


@pytest.mark.parametrize("seed", range(3))
def test_more_rows_than_first_fit(replay: Path, seed: int) -> None:
    """Random addresses, and downwards as the kernel maps."""
    calls = random_calls(np.random.default_rng(seed), 6000, 20_000)
    downwards = random_calls(np.random.default_rng(seed), 3000)
    downwards["address"] = PAGE * (40_000 - 10 * np.arange(len(downwards)))
    downwards["timestamp_ns"] += calls["timestamp_ns"][-1]
    both = np.concatenate([calls, downwards])
    expected = model(both)
    assert len(expected) > 3000
    assert replayed(replay, reading(END, both)) == expected


def in_order(addresses: np.ndarray, functions: np.ndarray | int) -> np.ndarray:
    """Calls about single pages."""
    calls = np.zeros(len(addresses), EVENT)
    calls["timestamp_ns"] = 10 * np.arange(1, len(calls) + 1)
    calls["address"], calls["size"], calls["function"], calls["pid"] = addresses, PAGE, functions, 7
    return calls


def test_calls_that_move_many_rows_are_applied_in_several_rounds(replay: Path) -> None:
    """A target may send a million: a round ends after so much work, and nothing else that the session does waits longer."""
    downwards = PAGE * (1_000_000 - 2 * np.arange(100_000))
    assert len(replayed(replay, reading(END, in_order(downwards, MMAP)))) == len(downwards)
    middle = np.full(2000, PAGE * (900_001))
    calls = in_order(np.concatenate([downwards, middle]), MMAP)
    calls["function"][len(downwards) + 1 :: 2] = MUNMAP  # and mapped again: each moves half of all rows
    assert replayed(replay, reading(END, calls), most_rounds=9) == model(calls)


@pytest.mark.parametrize("seed", range(30))
def test_rings_read_one_after_the_other(replay: Path, seed: int) -> None:
    """A reading that begins at T finds every call before T, and of the later ones those in the rings read last."""
    rng = np.random.default_rng(seed)
    calls = random_calls(rng, 60)
    ring = rng.integers(0, 4, len(calls))
    begins = [*np.sort(rng.choice(np.arange(5, 605, 10), 5, replace=False)), END]
    reader = np.searchsorted(begins, calls["timestamp_ns"])  # by the first reading that began later
    reader -= (reader > 0) & (rng.random(len(calls)) < 0.3)  # or by the one that was under way
    readings = [
        reading(begin, *(calls[(reader == number) & (ring == which)] for which in rng.permutation(4)))
        for number, begin in enumerate(begins)
    ]
    assert replayed(replay, np.concatenate(readings)) == model(calls)


@pytest.mark.parametrize("seed", range(30))
def test_a_late_unmapping(replay: Path, seed: int) -> None:
    """Its thread was stopped between the call and the telling: what was mapped there since stays."""
    rng = np.random.default_rng(seed)
    calls = random_calls(rng, 60)
    late = (calls["function"] == MUNMAP) & (rng.random(len(calls)) < 0.5)
    readings = [reading(END, calls[~late]), reading(2 * END, calls[late])]
    assert replayed(replay, np.concatenate(readings)) == model(calls)


@pytest.mark.parametrize("seed", range(5))
def test_an_exec_heard_of_late(replay: Path, seed: int) -> None:
    """Mappings of the new program and of other processes stay."""
    rng = np.random.default_rng(seed)
    calls = random_calls(rng, 60)
    others = random_calls(rng, 60)
    others["pid"] += 1
    others["address"] += PAGE * 1000
    exec_record = np.zeros(1, EVENT)
    exec_record["timestamp_ns"], exec_record["pid"], exec_record["function"] = 305, 7, MALLOC
    records = np.concatenate([reading(END, calls, others), exec_record])
    new = calls[calls["timestamp_ns"] > 305]
    assert replayed(replay, records) == model(new) | model(others)


def test_times_and_sizes_that_cannot_be(replay: Path) -> None:
    calls = random_calls(np.random.default_rng(1), 4)
    calls["timestamp_ns"] = [2**64 - 1, 0, 1, 2**63]
    calls["address"][0] = 2**64 - PAGE
    calls["size"] = [2**64 - 1, 2**64 - 1, 0, 1]
    calls["function"] = MMAP
    assert set(replayed(replay, reading(END, calls))) <= {int(calls["address"][3]) // PAGE}


def test_shared_memory_is_detached_by_its_address_alone(replay: Path) -> None:
    calls = random_calls(np.random.default_rng(1), 5)
    calls["function"] = [SHMAT, SHMAT, MMAP, MUNMAP, MUNMAP]
    calls["address"] = PAGE * np.array([10, 20, 30, 10, 30])
    calls["size"] = PAGE * np.array([3, 3, 3, 0, 0])
    assert replayed(replay, reading(END, calls)) == model(calls[1:3]), "shmdt() of what mmap() has made fails"
