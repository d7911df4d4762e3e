"""Worker processes are replaced before a library's leaks fill the machine, and no recording waits for that."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `fleet` is not installed")

from memleak_android.host.fleet import engines
from memleak_android.host.fleet.processing import Settings
from memleak_android.host.fleet.sources import list_sources


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
