"""Locations of symbol files: a file, a member of an APK, AAB or zip, or a member of an APK in an .apks.

AAB: BUNDLE-METADATA/com.android.tools.build.debugsymbols/ABI/LIBRARY.dbg (or .sym) beside base/lib/ABI/LIBRARY
(developer.android.com, "Include native symbols"); native-debug-symbols.zip has ABI/LIBRARY; an .apks, made from a bundle by
bundletool, has an APK for each ABI (developer.android.com, "bundletool"). Members are recognised by content, not by name.
"""

import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from memleak_android.unwind.elf_headers import ElfSections
from memleak_android.unwind.errors import BadElfError
from memleak_android.unwind.file_reading import contents, opened

ARCHIVE_SUFFIXES = frozenset({".apk", ".apks", ".aab", ".aar", ".zip"})
INSIDE = "!/"  # separates a member APK from its member
MAX_MEMBERS = 20_000  # read in one archive
MAX_READ_BYTES = 512 << 20
HEAD_BYTES = 64 << 10
_GROWTH_MAX = 32  # times its size an archive's members may have together; debug files have 3 to 6
_DEBUG_SUFFIXES = (".debug", ".dbg", ".sym")
# Errors of zipfile for archives that are damaged, encrypted or of an unknown compression.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError)


@dataclass(frozen=True, slots=True)
class SymbolLocation:
    """member: "" = the file itself."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}!/{self.member}" if self.member else str(self.path)

    @property
    def library(self) -> str:
        """The base name of the described library."""
        name = PurePosixPath(self.member or self.path.as_posix()).name
        return next((name.removesuffix(suffix) for suffix in _DEBUG_SUFFIXES if name.endswith(suffix)), name)

    def open(self) -> ElfSections:
        """Raises OSError, or BadElfError if it is not a regular ELF file."""
        if not self.member:
            return ElfSections(_read_file(self.path))
        try:
            with _archive(self.path) as archive, _innermost(archive, self.member) as (inner, name):
                return ElfSections(memoryview(_read_member(inner, name)))
        except (*_UNREADABLE, KeyError) as error:
            raise BadElfError(str(self), str(error)) from error


def read_build_id(path: Path) -> str:
    """The build-id, read from the file's first bytes if possible: linkers place it there. Raises as SymbolLocation.open."""
    head = ElfSections(_read_file(path, HEAD_BYTES))
    return head.build_id or SymbolLocation(path).open().build_id


def build_ids(path: Path) -> Iterator[tuple[SymbolLocation, str]]:
    """Locations and build-ids of the ELF files at `path`: itself, or an archive's members. Unreadable ones are skipped."""
    try:
        if path.suffix.lower() not in ARCHIVE_SUFFIXES:
            yield SymbolLocation(path), read_build_id(path)
            return
        with _archive(path) as archive:
            for member, build_id in _members(archive, with_packages=path.suffix.lower() == ".apks"):
                yield SymbolLocation(path, member), build_id
    except (*_UNREADABLE, OSError, BadElfError):
        return


class _Archive(zipfile.ZipFile):
    """left: bytes that may still be unpacked. Their number depends on the archive's own, whatever its members say."""

    def __init__(self, file: BinaryIO, beside: int = 0) -> None:
        super().__init__(file)
        self.left = beside + _GROWTH_MAX * file.seek(0, os.SEEK_END)

    def read_some(self, name: str, limit: int) -> bytes:
        """The first `limit` bytes of a member. Raises BadElfError once too much has been unpacked."""
        self.left -= min(self.getinfo(name).file_size, limit)
        if self.left < 0:
            raise BadElfError(name, f"the archive unpacks to more than {_GROWTH_MAX} times its size")
        with self.open(name) as stream:
            return stream.read(limit)


@contextmanager
def _archive(path: Path) -> Iterator[_Archive]:
    with opened(path) as file, _Archive(file, MAX_READ_BYTES) as archive:
        yield archive


def _members(archive: _Archive, with_packages: bool) -> Iterator[tuple[str, str]]:
    """Names and build-ids of ELF files; with_packages: also of those in member APKs."""
    for info in archive.infolist()[:MAX_MEMBERS]:
        if with_packages and info.filename.lower().endswith(".apk"):
            yield from _members_of_package(archive, info.filename)
        elif (build_id := _build_id_of_member(archive, info)) is not None:
            yield info.filename, build_id


def _members_of_package(archive: _Archive, name: str) -> Iterator[tuple[str, str]]:
    """Skips a damaged package."""
    try:
        with _package(archive, name) as inner:
            for member, build_id in _members(inner, with_packages=False):
                yield f"{name}{INSIDE}{member}", build_id
    except (*_UNREADABLE, OSError, BadElfError):
        return


def _package(archive: _Archive, name: str) -> _Archive:
    return _Archive(io.BytesIO(_read_member(archive, name)))


@contextmanager
def _innermost(archive: _Archive, member: str) -> Iterator[tuple[_Archive, str]]:
    """The archive that directly contains the file, and the file's name in it."""
    package, inside, name = member.partition(INSIDE)
    if not inside or member in archive.NameToInfo:
        yield archive, member
        return
    with _package(archive, package) as inner:
        yield inner, name


def _build_id_of_member(archive: _Archive, info: zipfile.ZipInfo) -> str | None:
    """None: not an ELF file, or unreadable."""
    if info.is_dir() or info.file_size < 52:
        return None
    try:
        head = archive.read_some(info.filename, HEAD_BYTES)
        if not head.startswith(b"\x7fELF"):
            return None
        found = ElfSections(memoryview(head)).build_id
        return found or ElfSections(memoryview(_read_member(archive, info.filename))).build_id
    except (*_UNREADABLE, OSError, BadElfError):
        return None


def _read_member(archive: _Archive, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > MAX_READ_BYTES:
        raise BadElfError(name, f"it has {info.file_size:,} bytes")
    return archive.read_some(name, MAX_READ_BYTES)


def _read_file(path: Path, limit: int | None = None) -> memoryview:
    """The file's first `limit` bytes, or all. A copy unless it is huge: its owner may rebuild it."""
    with opened(path) as file:
        data = (
            contents(file.fileno(), path, MAX_READ_BYTES) if limit is None else memoryview(file.read(limit))
        )
    if not data:
        raise BadElfError(str(path), "it is empty")
    return data
