"""A farm's workers, which hold one recording, are replaced before they fill the machine, and search --symbols once a run; the dataset."""

import subprocess
import sys
from pathlib import Path

import pytest

from memleak_android.host.fleet import engines
from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.processing import Part, Settings, process
from memleak_android.host.fleet.rows import broken_row
from memleak_android.host.fleet.schema import SITES, to_parquet
from memleak_android.host.fleet.sources import list_sources
from memleak_android.host.symbols import debug_files

FEW, MANY = 10, 60
GROWTH_MAX_KIB = 24 << 10  # libc's file, its symbols and lines alone take more than 10 MiB a recording

WORKER = f"""
import resource, sys
from memleak_android.host.fleet.processing import Settings, process
from memleak_android.host.fleet.sources import list_sources
recordings, _ = list_sources([sys.argv[1]])
for number, one in enumerate(recordings[:{MANY}], 1):
    part = process(one, Settings())
    assert part.is_final
    if number in ({FEW}, {MANY}):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_what_a_worker_holds_does_not_grow(farm: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, farm], capture_output=True, text=True, timeout=250, check=True
    )
    few, many = map(int, done.stdout.split())
    assert many - few < GROWTH_MAX_KIB, (few, many)


def test_folders_are_searched_once_a_run(farm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And finds what was put there before the next."""
    searched = []
    files_below = debug_files._files_below
    monkeypatch.setattr(
        debug_files, "_files_below", lambda folders: searched.append(folders) or files_below(folders)
    )
    recordings, _ = list_sources([f"{farm}/0000[0-3].memleak"])
    for run in ("first", "second"):
        parts = [process(one, Settings((str(tmp_path),), run=run)) for one in recordings]
        assert len(parts) == 4 and all(part.is_final for part in parts)
    assert searched == [(tmp_path,)] * 2


@pytest.mark.parametrize(("jobs", "recordings"), [(1, 5), (2, 9)])
def test_more_recordings_than_the_first_workers_take(
    jobs: int, recordings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = []
    make_pool = engines._pool
    monkeypatch.setattr(engines, "_ROUND", 2)
    monkeypatch.setattr(engines, "_pool", lambda jobs: pools.append(jobs) or make_pool(jobs))
    for number in range(recordings):
        (tmp_path / f"{number}.memleak").write_bytes(b"no recording")
    listed, _ = list_sources([str(tmp_path)])
    settings = Settings()
    done = [part.key for part in engines.LocalEngine(jobs).run(listed, settings)]
    assert sorted(done) == sorted(settings.key(one) for one in listed)
    assert pools == [jobs] * 3


PARTS = 40
READER = f"""
import os, sys
from memleak_android.host.fleet.dataset import Dataset
dataset = Dataset(sys.argv[1])
before = set(os.listdir("/proc/self/task"))
tables = dataset.read("recordings", [f"{{i:03}}" for i in range({PARTS})])
print(sum(map(len, tables)), len(set(os.listdir("/proc/self/task")) - before))
"""


def test_reading_starts_no_thread(tmp_path: Path) -> None:
    """One of Arrow's own that drops an object of Python's while the interpreter ends would abort the process."""
    dataset = Dataset(str(tmp_path))
    for i in range(PARTS):
        row = broken_row(f"{i}.memleak", 1, "", "cut")
        dataset.add(Part(f"{i:03}", to_parquet(row), to_parquet(SITES.empty_table())))
    done = subprocess.run(
        [sys.executable, "-c", READER, tmp_path], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.split() == [str(PARTS), "0"]
