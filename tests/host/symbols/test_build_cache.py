"""One cache for many workers: made once, whole or not there, and never a reason to fail."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.symbols import build_cache
from memleak_android.host.symbols.build_cache import BuildCache, CacheUse, StoredOrigin
from tests.support.fakes.debuginfod_server import Served, asked_for, server
from tests.support.oracles.symbols import FileModule, text_vaddrs

WHOLE = bytes(range(256)) * 4096
PROCESSES = 6


def read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def get(cache: BuildCache, name: str = "a.rows", makes_for_s: float = 0.0) -> bytes | None:
    """As a user of the cache does it, who notices what is not whole."""
    path = cache.folder / name

    def make() -> bytes:
        time.sleep(makes_for_s)
        path.parent.mkdir(parents=True, exist_ok=True)
        passing = path.with_name(f".{os.getpid()}.{threading.get_ident()}")
        passing.write_bytes(WHOLE)
        passing.replace(path)
        return WHOLE

    return cache.obtain(path, lambda: read(path), make)


def _get_some(folder: str, all_here: Barrier, counts: Queue[tuple[int, int, bool]]) -> None:
    all_here.wait(60)
    cache = BuildCache(Path(folder))
    whole = all(get(cache, f"{i}.rows", 0.05) == WHOLE for i in range(5))
    counts.put((cache.uses["unwind tables"].built, cache.uses["unwind tables"].reused, whole))


def test_processes_that_want_the_same_at_once_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    counts: Queue[tuple[int, int, bool]] = context.Queue()
    words = (str(tmp_path), context.Barrier(PROCESSES), counts)
    running = [context.Process(target=_get_some, args=words) for _ in range(PROCESSES)]
    for one in running:
        one.start()
    done = [counts.get(timeout=100) for _ in running]
    for one in running:
        one.join()
    assert all(whole for *_, whole in done)
    assert sum(built for built, *_ in done) == 5
    assert sum(reused for _, reused, _ in done) == 5 * (PROCESSES - 1)


def test_a_maker_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_cache, "_PATIENCE_S", 0.05)
    slow, own = BuildCache(tmp_path), BuildCache(tmp_path)
    with slow._only_maker(tmp_path / "a.rows"):
        assert get(own) == WHOLE
    assert own.uses["unwind tables"] == CacheUse(built=1)


def test_a_read_only_folder_is_not_a_failure() -> None:
    cache = BuildCache(Path("/proc/none"))
    assert cache.obtain(cache.folder / "a.rows", lambda: None, lambda: b"made") == b"made"


@dataclass
class Store:
    """Implements Origin. fails: what each call raises."""

    folder: Path
    fails: Exception | None = None
    asked: int = 0

    def download(self, name: str, into: Path) -> bool:
        self.asked += 1
        if self.fails:
            raise self.fails
        if not (self.folder / name).exists():
            return False
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_bytes((self.folder / name).read_bytes())
        return True

    def upload(self, name: str, path: Path) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(path.read_bytes())


def test_what_one_machine_made_another_fetches(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    machines = [BuildCache(tmp_path / str(i), Store(tmp_path / "store")) for i in range(2)]
    assert [get(machine) for machine in machines] == [WHOLE, WHOLE]
    assert [machine.uses["unwind tables"] for machine in machines] == [
        CacheUse(built=1),
        CacheUse(reused=1, fetched=1),
    ]


def test_a_debug_file_is_asked_for_by_one_machine(program: Path, stripped: Path, tmp_path: Path) -> None:
    """Its names and lines are those of every machine."""
    module, vaddrs = FileModule.open(stripped), np.array(text_vaddrs(program)[::7], np.uint64)
    with server(Served({asked_for(module.build_id): program.read_bytes()})) as served:
        environment = {"DEBUGINFOD_URLS": served.url}
        machines = [
            BuildCache(tmp_path / str(i), Store(tmp_path / "store"), tmp_path / str(i) / "debuginfo")
            for i in range(2)
        ]
        named = [one.symbolizer((), environment).resolve(module, vaddrs) for one in machines]
        assert served.asked == [asked_for(module.build_id)]
    assert named[0] == named[1] and any(frame.line for chain in named[0] for frame in chain)
    for kind in ("debug files", "line tables"):
        assert [one.uses[kind] for one in machines] == [CacheUse(built=1), CacheUse(reused=1, fetched=1)]


def test_what_is_damaged_there_is_made_anew_for_all(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "a.rows").write_bytes(b"torn")
    cache = BuildCache(tmp_path / "own", store)
    path = cache.folder / "a.rows"

    def read_whole() -> bytes | None:
        return WHOLE if read(path) == WHOLE else None

    def make() -> bytes:
        path.write_bytes(WHOLE)
        return WHOLE

    assert cache.obtain(path, read_whole, make) == WHOLE
    assert cache.uses["unwind tables"] == CacheUse(built=1)
    assert (tmp_path / "a.rows").read_bytes() == WHOLE


def test_a_failing_store_is_reported_and_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path, PermissionError("not yours"))
    cache = BuildCache(tmp_path / "own", store)
    assert [get(cache, name) for name in ("a.rows", "b.symcache")] == [WHOLE, WHOLE]
    assert cache.failures == ["PermissionError: not yours"] and store.asked == 1


def test_files_of_other_folders_are_not_shared(tmp_path: Path) -> None:
    """debuginfod's own cache."""
    cache = BuildCache(tmp_path / "own", Store(tmp_path, AssertionError("asked")))
    file = tmp_path / "client" / "debuginfo"
    assert cache.obtain(file, lambda: None, lambda: b"made") == b"made" and not cache.failures


@pytest.mark.parametrize("is_object_store", [True, False])
def test_a_folder_of_a_store(tmp_path: Path, is_object_store: bool) -> None:
    fsspec = pytest.importorskip("fsspec", reason="the extra `fleet` is not installed")
    origin = StoredOrigin(fsspec.filesystem("file"), str(tmp_path / "there"), is_object_store)
    (tmp_path / "there" / "tables").mkdir(parents=True)
    (tmp_path / "a").write_bytes(WHOLE)
    assert not origin.download("tables/a.rows", tmp_path / "b")
    origin.upload("tables/a.rows", tmp_path / "a")
    assert origin.download("tables/a.rows", tmp_path / "here" / "b")
    assert (tmp_path / "here" / "b").read_bytes() == WHOLE
    assert [path.name for path in (tmp_path / "there" / "tables").iterdir()] == ["a.rows"]


def test_too_much_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec", reason="the extra `fleet` is not installed")
    monkeypatch.setattr(build_cache, "_FILE_BYTES_MAX", 1000)
    (tmp_path / "a.rows").write_bytes(WHOLE)
    cache = BuildCache(tmp_path / "own", StoredOrigin(fsspec.filesystem("file"), str(tmp_path), True))
    assert cache.find(cache.folder / "a.rows", lambda: read(cache.folder / "a.rows")) is None
    assert cache.failures == ["OSError: it has more than 1,000 bytes"]
    assert [path.name for path in cache.folder.iterdir()] == ["locks"]
