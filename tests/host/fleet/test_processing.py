"""A worker of a farm: its memory is that of one recording; it searches through --symbols once a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from memleak_android.host.fleet.processing import Settings, process
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
