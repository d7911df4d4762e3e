"""What is made or fetched once per build-id, for all workers: in a folder, or in one that any place fsspec knows lies behind.

Workers of one machine wait for whoever makes a file (flock(2), which ends with its holder). Two machines that want the
same at the same time both make it, and either's is as good: a file comes to its place whole, here and there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from memleak_android.host.elf.sections import ElfSections
from memleak_android.host.machine.adb.pulled_files import BUILD_ID, LIMIT_BYTES, forget_oldest, kept_copies
from memleak_android.host.symbols.debug_files import DebugFileSearch, SymbolIndex
from memleak_android.host.symbols.debuginfod import debuginfod_of, default_cache
from memleak_android.host.symbols.symbolizer import Symbolizer, default_cache_dir
from memleak_android.unwind.cfi.table_cache import TableCache

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
_PATIENCE_S = 120.0  # for who makes a file: longer than debuginfod's client waits
_LOOK_S = 0.02


class Origin(Protocol):
    """The same files, of all machines. Methods raise what their store's library raises."""

    def download(self, name: str, into: Path) -> bool:
        """Whole or not at all; False: it is not there."""
        ...

    def upload(self, name: str, path: Path) -> None: ...


@dataclass(slots=True)
class CacheUse:
    """Of one kind of files, by whoever counts. built: made here. reused: made before, by whomever; of them fetched: from the origin."""

    built: int = 0
    reused: int = 0
    fetched: int = 0

    def add(self, other: CacheUse) -> None:
        self.built += other.built
        self.reused += other.reused
        self.fetched += other.fetched


@dataclass
class BuildCache:
    """Implements Sharing. origin: what lies below the folder is there, too. debug_files: None = where debuginfod's client has them.

    device_files: where files pulled from devices are for all, None = only this machine's own copies are used.
    symbols: of --symbols, where others have searched through them already. uses: by kind. failures: why the origin could not be used.
    """

    folder: Path
    origin: Origin | None = None
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

    def device_copies(self, build_id: str) -> Iterator[Path]:
        """Of a file that was pulled from a device: what all share, so that all find the same in it, then what this machine has."""
        kept = kept_copies(default_cache_dir() / "modules", build_id)
        shared = self.share_device_file(build_id, kept)
        if shared is not None:
            yield shared
        yield from kept

    def share_device_file(self, build_id: str, kept: Sequence[Path]) -> Path | None:
        """Its place for all, where it is brought from the first of these copies that is whole; None where nobody has one."""
        if self.device_files is None or not BUILD_ID.fullmatch(build_id):
            return None
        place = self.device_files / build_id[:2] / f"{build_id[2:]}.elf"

        def make() -> Path | None:
            whole = next((path for path in kept if _whole(path, build_id)), None)
            return _copy_into(whole, place) if whole else None

        failures, was_here = len(self.failures), place.is_file()
        found = self.obtain(place, lambda: _whole(place, build_id), make)
        if len(self.failures) > failures:  # it is here and not there: the next one has to bring it again
            place.unlink(missing_ok=True)
            return None
        if found and self.origin is not None:  # before a store: what can be fetched again
            os.utime(found)
            if not was_here:
                forget_oldest(self.device_files, LIMIT_BYTES)
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
                self._upload(path)
        return found

    def _seek(self, path: Path, read: Callable[[], T | None]) -> T | None:
        """While nobody else can bring it here."""
        found = read()
        if found is None and self._download(path):
            found = read()
            self._use(path).fetched += found is not None
        self._use(path).reused += found is not None
        return found

    def _use(self, path: Path) -> CacheUse:
        return self.uses[KINDS[path.suffix]]

    def _download(self, path: Path) -> bool:
        return bool(self._at_origin(lambda origin, name: origin.download(name, path), path))

    def _upload(self, path: Path) -> None:
        if path.is_file():  # a folder that cannot be written keeps nothing
            self._at_origin(lambda origin, name: origin.upload(name, path), path)

    def _at_origin(self, work: Callable[[Origin, str], T], path: Path) -> T | None:
        """One that fails is not asked again: all can be made without it."""
        if self.origin is None or self.failures or not path.is_relative_to(self.folder):
            return None
        try:
            return work(self.origin, path.relative_to(self.folder).as_posix())
        except Exception as error:  # noqa: BLE001 - each store raises what its library does
            self.failures.append(f"{type(error).__name__}: {error}".splitlines()[0])
            return None

    @contextlib.contextmanager
    def _only_maker(self, path: Path) -> Iterator[None]:
        """Until the file is there, or its maker takes too long: made twice is better than not at all."""
        with contextlib.ExitStack() as closed_later:
            with contextlib.suppress(OSError):
                lock = os.open(self._lock_place(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                closed_later.callback(os.close, lock)
                deadline = time.monotonic() + _PATIENCE_S
                while not _is_locked(lock) and time.monotonic() < deadline:
                    time.sleep(_LOOK_S)
            yield

    def _lock_place(self, path: Path) -> Path:
        """One of a few for all, since a lock's file must never be removed."""
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder / f"{hashlib.sha256(os.fsencode(path.name)).digest()[0] % _LOCKS:02x}"


def _whole(path: Path, build_id: str) -> Path | None:
    """The path of a file that has this build-id and all that its headers name."""
    try:
        with path.open("rb") as file:
            elf = ElfSections(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
    except (OSError, ValueError):  # of nothing in it; or BadElf
        return None
    return None if elf.is_cut or elf.build_id != build_id else path


def _copy_into(source: Path, place: Path) -> Path | None:
    """None where the folder cannot be written."""
    try:
        with _appearing(place) as file, source.open("rb") as of:
            shutil.copyfileobj(of, file, _PIECE)
    except OSError:
        return None
    return place


@contextlib.contextmanager
def _appearing(place: Path) -> Iterator[BinaryIO]:
    """A file that comes to its place when all of it was written."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(prefix=".fetched-", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(temporary, place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _is_locked(descriptor: int) -> bool:
    """By us now. Raises OSError where this filesystem has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class StoredOrigin:
    """A folder on any store. files: fsspec's filesystem. is_object_store: what is written there appears whole, and there are no folders to make."""

    files: Any
    root: str
    is_object_store: bool

    def download(self, name: str, into: Path) -> bool:
        try:
            source = self.files.open(f"{self.root}/{name}", "rb")
        except FileNotFoundError:
            return False
        with source, _appearing(into) as file:
            _copy(source, file)
        return True

    def upload(self, name: str, path: Path) -> None:
        place = f"{self.root}/{name}"
        passing = place if self.is_object_store else f"{place}.{os.getpid()}-{time.monotonic_ns()}"
        if not self.is_object_store:
            self.files.makedirs(place.rpartition("/")[0], exist_ok=True)
        self.files.put_file(str(path), passing)
        if passing != place:
            self.files.mv(passing, place)


def _copy(source: Any, file: Any) -> None:
    size = 0
    while piece := source.read(_PIECE):
        size += len(piece)
        if size > _FILE_BYTES_MAX:
            raise OSError(f"it has more than {_FILE_BYTES_MAX:,} bytes")
        file.write(piece)
