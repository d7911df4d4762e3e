"""--symbols in a farm: a worker searches through the folders once a run, and finds what was put there before the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from memleak_android.host.fleet.processing import Settings, process
from memleak_android.host.fleet.sources import list_sources
from memleak_android.host.symbols import debug_files


def test_folders_are_searched_once_a_run(farm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
