"""A cache by build-id that workers share: a folder, optionally backed by a store that fsspec can reach.

Workers of one machine wait for the one that makes a file (flock(2), which ends with its holder). Two machines may make the same
file at the same time; either result is good, because files appear complete, here and in the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from memleak_android.host.machine.adb.pulled_files import LIMIT_BYTES, kept_copies
from memleak_android.host.symbols.debug_files import DebugFileSearch, SymbolIndex
from memleak_android.host.symbols.debuginfod import debuginfod_of, default_cache
from memleak_android.host.symbols.symbolizer import Symbolizer, default_cache_dir
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.elf_headers import BUILD_ID, ElfSections
from memleak_android.unwind.errors import BadElfError
from memleak_android.unwind.file_reading import contents, opened
from memleak_android.unwind.file_writing import appearing, append, forget_oldest, make_folder, remove

T = TypeVar("T")

KINDS = {
    ".rows": "unwind tables",
    ".symcache": "line tables",
    "": "debug files",
    ".elf": "device files",
}  # by suffix
_FILE_BYTES_MAX = 1 << 30
_PIECE = 1 << 20
_LOCKS = 256
_PATIENCE_S = 120.0  # for the maker of a file; longer than debuginfod's client waits
_POLL_S = 0.02


@dataclass(slots=True)
class CacheUse:
    """Counts for one kind of file. built: made here. reused: made before, anywhere; fetched: those of them that came from the store."""

    built: int = 0
    reused: int = 0
    fetched: int = 0

    def add(self, other: CacheUse) -> None:
        self.built += other.built
        self.reused += other.reused
        self.fetched += other.fetched


@dataclass
class BuildCache:
    """Implements Sharing.

    origin: a store with the same files as the folder.
    debug_files: None = the folder of debuginfod's client.
    device_files: shared files pulled from devices, None = only this machine's own copies are used.
    symbols: index of --symbols, if already made.
    uses: by kind.
    failures: why the store could not be used.
    """

    folder: Path
    origin: StoredOrigin | None = None
    debug_files: Path | None = None
    device_files: Path | None = None
    symbols: SymbolIndex | None = None
    uses: dict[str, CacheUse] = field(default_factory=lambda: {kind: CacheUse() for kind in KINDS.values()})
    failures: list[str] = field(default_factory=list)

    def tables(self) -> TableCache:
        return TableCache(self.folder / "tables", self)

    def symbolizer(self, symbol_dirs: tuple[Path, ...], environment: Mapping[str, str]) -> Symbolizer:
        """environment: for DEBUGINFOD_URLS."""
        servers = debuginfod_of(environment, default_cache())
        servers.cache = self.debug_files or servers.cache
        servers.sharing = self
        return Symbolizer(
            symbol_dirs, self.folder, DebugFileSearch(symbol_dirs, servers=servers, index=self.symbols), self
        )

    def device_copies(self, serial: str, build_id: str) -> Iterator[Path]:
        """Copies of a file pulled from a device: the shared one first, so that all workers use the same, then this machine's.

        A shared one may be of any device: the user has named the cache.
        """
        kept = kept_copies(default_cache_dir() / "modules", serial, build_id)
        shared = self.share_device_file(build_id, kept)
        if shared is not None:
            yield shared
        yield from kept

    def share_device_file(self, build_id: str, kept: Sequence[Path]) -> Path | None:
        """The path of the shared copy, made from the first complete copy in `kept`; None if there is none."""
        if self.device_files is None or not BUILD_ID.fullmatch(build_id):
            return None
        path = self.device_files / build_id[:2] / f"{build_id[2:]}.elf"

        def make() -> Path | None:
            whole = next((copy for copy in kept if _whole(copy, build_id)), None)
            return _copy_into(whole, path) if whole else None

        failures, was_here = len(self.failures), path.is_file()
        found = self.obtain(path, lambda: _whole(path, build_id), make)
        if len(self.failures) > failures:  # the upload failed: the next worker must upload it again
            remove(path)
            return None
        if found and self.origin is not None:  # the store has it, so the local copy may be deleted
            os.utime(found)
            if not was_here:
                forget_oldest(self.device_files.glob("??/*"), LIMIT_BYTES)
        return found

    def find(self, path: Path, read: Callable[[], T | None]) -> T | None:
        found = read()
        if found is None and self.origin is not None:
            with self._only_maker(path):
                return self._seek(path, read)
        self._use(path).reused += found is not None
        return found

    def obtain(self, path: Path, read: Callable[[], T | None], make: Callable[[], T | None]) -> T | None:
        found = read()
        if found is not None:
            self._use(path).reused += 1
            return found
        with self._only_maker(path):
            found = self._seek(path, read)
            if found is None and (found := make()) is not None:
                self._use(path).built += 1
                if path.is_file():  # an unwritable folder has no file
                    self._at_origin(lambda origin, name: origin.upload(name, path), path)
        return found

    def _seek(self, path: Path, read: Callable[[], T | None]) -> T | None:
        """Reads or downloads it, while holding the lock."""
        found = read()
        if found is None and self._at_origin(lambda origin, name: origin.download(name, path), path):
            found = read()
            self._use(path).fetched += found is not None
        self._use(path).reused += found is not None
        return found

    def _use(self, path: Path) -> CacheUse:
        return self.uses[KINDS[path.suffix]]

    def _at_origin(self, work: Callable[[StoredOrigin, str], T], path: Path) -> T | None:
        """Calls `work` unless the store failed before: every file can be made without it."""
        if self.origin is None or self.failures or not path.is_relative_to(self.folder):
            return None
        try:
            return work(self.origin, path.relative_to(self.folder).as_posix())
        except Exception as error:  # noqa: BLE001 - each store raises what its library does
            self.failures.append(f"{type(error).__name__}: {error}".splitlines()[0])
            return None

    @contextlib.contextmanager
    def _only_maker(self, path: Path) -> Iterator[None]:
        """Holds the file's lock, or gives up after _PATIENCE_S: making a file twice is better than not at all."""
        with contextlib.ExitStack() as closed_later:
            with contextlib.suppress(OSError):
                lock = append(self._lock_path(path))
                closed_later.callback(os.close, lock)
                deadline = time.monotonic() + _PATIENCE_S
                while not _is_locked(lock) and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
            yield

    def _lock_path(self, path: Path) -> Path:
        """One of a few lock files, which are never removed."""
        folder = self.folder / "locks"
        make_folder(folder, 0o700)
        return folder / f"{hashlib.sha256(os.fsencode(path.name)).digest()[0] % _LOCKS:02x}"


def _whole(path: Path, build_id: str) -> Path | None:
    """`path`, if the file has this build-id and all bytes that its headers name."""
    try:
        with opened(path) as file:
            elf = ElfSections(contents(file.fileno(), path))
    except (OSError, ValueError, BadElfError):
        return None
    return None if elf.is_cut or elf.build_id != build_id else path


def _copy_into(source: Path, path: Path) -> Path | None:
    """None if the folder cannot be written."""
    try:
        with appearing(path) as file, opened(source) as of:
            shutil.copyfileobj(of, file, _PIECE)
    except OSError:
        return None
    return path


def _is_locked(descriptor: int) -> bool:
    """Tries to take the lock. Raises OSError if this filesystem has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class StoredOrigin:
    """A folder in a store that all machines share. Its methods raise the errors of the store's library.

    files: fsspec's filesystem. is_object_store: uploads appear complete, and folders need not be made.
    """

    files: Any
    root: str
    is_object_store: bool

    def download(self, name: str, into: Path) -> bool:
        """Copies the complete file. False: the store lacks it."""
        try:
            source = self.files.open(f"{self.root}/{name}", "rb")
        except FileNotFoundError:
            return False
        with source, appearing(into) as file:
            _copy(source, file)
        return True

    def upload(self, name: str, path: Path) -> None:
        target = f"{self.root}/{name}"
        temporary = target if self.is_object_store else f"{target}.{os.getpid()}-{time.monotonic_ns()}"
        if not self.is_object_store:
            self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self.files.put_file(str(path), temporary)
        if temporary != target:
            self.files.mv(temporary, target)


def _copy(source: Any, file: Any) -> None:
    size = 0
    while piece := source.read(_PIECE):
        size += len(piece)
        if size > _FILE_BYTES_MAX:
            raise OSError(f"it has more than {_FILE_BYTES_MAX:,} bytes")
        file.write(piece)
