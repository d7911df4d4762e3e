"""Lines and inlined functions of one module, from the `symbolic` library, cached on disk by the digest of the file.

Some systems have no wheels of `symbolic`. There load_line_table() returns None and names come from symbol tables.
"""

import importlib
import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memleak_android.host.symbols.debug_files import SymbolFile
from memleak_android.unwind.cfi.cache_sharing import Sharing, Unshared, entry_path, file_digest
from memleak_android.unwind.file_reading import read_file
from memleak_android.unwind.file_writing import appearing, forget_oldest


def _import_symbolic() -> Any:
    """The library, or None. Restores the environment variable that its import sets: a traced command would inherit it."""
    before = dict(os.environ)
    try:
        return importlib.import_module("symbolic")
    except ImportError:  # pragma: no cover - a system without a wheel of symbolic
        return None
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


symbolic: Any = _import_symbolic()

# Appended to the symcache's bytes: magic, CRC-32, vaddr of the first PT_LOAD. symbolic does not detect
# flipped bytes.
TRAILER = struct.Struct("<8sIQ")
TRAILER_MAGIC = b"mlsymc\x00\x01"
MAX_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Location:
    """One function at an address: its mangled name, its start, and the line within it."""

    name: str
    vaddr: int
    file: str | None
    line: int | None


class LineTable:
    """vaddr → functions, innermost inlined first, the one with its own machine code last."""

    def __init__(self, symcache: Any, first_load_vaddr: int) -> None:
        self._symcache = symcache
        self._base = first_load_vaddr  # symbolic counts from the first PT_LOAD

    def lookup(self, vaddr: int) -> list[Location]:
        if vaddr < self._base:
            return []
        try:
            found = self._symcache.lookup(vaddr - self._base)
        except symbolic.SymbolicError:
            return []
        return [
            Location(
                s.symbol,
                s.sym_addr + self._base,
                os.path.normpath(s.full_path) if s.full_path else None,
                s.line or None,
            )
            for s in found
        ]


def load_line_table(
    file: SymbolFile, cache_dir: Path | None, sharing: Sharing | None = None
) -> LineTable | None:
    """From the cache, else made from `file` (which has .debug_info) and cached. None if neither is possible.

    cache_dir: None = no cache.
    sharing: of the cache.

    An entry belongs to the file's bytes. By build-id a target could supply lines for other programs, because it bears any.
    """
    if symbolic is None:
        return None
    if cache_dir is None:
        return _make(file, None)
    cache = entry_path(cache_dir, file.elf.build_id, file_digest(file.elf.data), ".symcache")
    return (sharing or Unshared()).obtain(cache, lambda: _read_cache(cache), lambda: _make(file, cache))


def _make(file: SymbolFile, cache: Path | None) -> LineTable | None:
    try:
        data = _as_bytes(file.elf.data)  # symbolic borrows the bytes: they must outlive the archive
        archive = symbolic.Archive.from_bytes(data)
        symcache = next(archive.iter_objects()).make_symcache()
        packed = symcache.open_stream().read()
    except (symbolic.SymbolicError, OSError, StopIteration, MemoryError):
        return None
    if cache is not None:
        _write_cache(cache, packed, file.elf.first_load_vaddr)
    return LineTable(symcache, file.elf.first_load_vaddr)


def _as_bytes(data: memoryview) -> bytes:
    return data.obj if isinstance(data.obj, bytes) and len(data.obj) == len(data) else bytes(data)


def _read_cache(path: Path) -> LineTable | None:
    """None for an absent, damaged or outdated cache file."""
    try:
        data = read_file(path, MAX_CACHE_BYTES)
    except OSError:
        return None
    if len(data) < TRAILER.size:
        return None
    magic, crc, first_load_vaddr = TRAILER.unpack(data[-TRAILER.size :])
    packed = data[: -TRAILER.size]
    if magic != TRAILER_MAGIC or zlib.crc32(packed) != crc:
        return None
    try:
        symcache = symbolic.SymCache.from_bytes(packed)
        return LineTable(symcache, first_load_vaddr) if symcache.is_latest_version else None
    except symbolic.SymbolicError:
        return None


def _write_cache(path: Path, packed: bytes, first_load_vaddr: int) -> None:
    """Writes the file completely or not at all. Errors are ignored."""
    with suppress(OSError):
        with appearing(path) as file:
            file.write(packed)
            file.write(TRAILER.pack(TRAILER_MAGIC, zlib.crc32(packed), first_load_vaddr))
        forget_oldest(path.parent.glob("*.symcache"), MAX_CACHE_BYTES)
