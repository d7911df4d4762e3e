"""Locations of symbol files: a file, a member of an APK, AAB or zip, or a member of an APK in an .apks.

AAB: BUNDLE-METADATA/com.android.tools.build.debugsymbols/ABI/LIBRARY.dbg (or .sym) beside base/lib/ABI/LIBRARY
(developer.android.com, "Include native symbols"); native-debug-symbols.zip has ABI/LIBRARY; an .apks, made from a bundle by
bundletool, has an APK for each ABI (developer.android.com, "bundletool"). Members are recognised by content, not by name.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from memleak_android.host.elf.sections import BadElf, ElfSections

ARCHIVE_SUFFIXES = frozenset({".apk", ".apks", ".aab", ".aar", ".zip"})
INSIDE = "!/"  # separates a member APK from its member
MAX_MEMBERS = 20_000  # read in one archive
MAX_READ_BYTES = 512 << 20
HEAD_BYTES = 64 << 10
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
        """Raises OSError, or BadElf if it is not a regular ELF file."""
        if not self.member:
            return ElfSections(memoryview(_read_file(self.path)))
        try:
            with zipfile.ZipFile(self.path) as archive, _innermost(archive, self.member) as (inner, name):
                return ElfSections(memoryview(_read_member(inner, name)))
        except (*_UNREADABLE, KeyError) as error:
            raise BadElf(f"{self} cannot be read: {error}") from error


def read_build_id(path: Path) -> str:
    """The build-id, read from the file's first bytes if possible: linkers place it there. Raises as SymbolLocation.open."""
    head = ElfSections(memoryview(_read_file(path, HEAD_BYTES)))
    return head.build_id or SymbolLocation(path).open().build_id


def build_ids(path: Path) -> Iterator[tuple[SymbolLocation, str]]:
    """Locations and build-ids of the ELF files at `path`: itself, or an archive's members. Unreadable ones are skipped."""
    try:
        if path.suffix.lower() not in ARCHIVE_SUFFIXES:
            yield SymbolLocation(path), read_build_id(path)
            return
        with zipfile.ZipFile(path) as archive:
            for member, build_id in _members(archive, with_packages=path.suffix.lower() == ".apks"):
                yield SymbolLocation(path, member), build_id
    except (*_UNREADABLE, OSError, BadElf):
        return


def _members(archive: zipfile.ZipFile, with_packages: bool) -> Iterator[tuple[str, str]]:
    """Names and build-ids of ELF files; with_packages: also of those in member APKs."""
    for info in archive.infolist()[:MAX_MEMBERS]:
        if with_packages and info.filename.lower().endswith(".apk"):
            yield from _members_of_package(archive, info.filename)
        elif (build_id := _build_id_of_member(archive, info)) is not None:
            yield info.filename, build_id


def _members_of_package(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[str, str]]:
    """Skips a damaged package."""
    try:
        with _package(archive, name) as inner:
            for member, build_id in _members(inner, with_packages=False):
                yield f"{name}{INSIDE}{member}", build_id
    except (*_UNREADABLE, OSError, BadElf):
        return


def _package(archive: zipfile.ZipFile, name: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(_read_member(archive, name)))


@contextmanager
def _innermost(archive: zipfile.ZipFile, member: str) -> Iterator[tuple[zipfile.ZipFile, str]]:
    """The archive that directly contains the file, and the file's name in it."""
    package, inside, name = member.partition(INSIDE)
    if not inside or member in archive.NameToInfo:
        yield archive, member
        return
    with _package(archive, package) as inner:
        yield inner, name


def _build_id_of_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str | None:
    """None: not an ELF file, or unreadable."""
    if info.is_dir() or info.file_size < 52:
        return None
    try:
        with archive.open(info) as stream:
            if stream.read(4) != b"\x7fELF":
                return None
            head = b"\x7fELF" + stream.read(HEAD_BYTES - 4)
        found = ElfSections(memoryview(head)).build_id
        return found or ElfSections(memoryview(_read_member(archive, info.filename))).build_id
    except (*_UNREADABLE, OSError, BadElf):
        return None


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > MAX_READ_BYTES:
        raise BadElf(f"{name} has {info.file_size:,} bytes")
    with archive.open(info) as stream:
        return stream.read(MAX_READ_BYTES)


def _read_file(path: Path, limit: int | None = None) -> bytes | mmap.mmap:
    """Reads the file into memory unless it is huge: mapped memory dies with SIGBUS when the file is rebuilt."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            raise BadElf("not a regular file")
        if limit is None and status.st_size > MAX_READ_BYTES:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return file.read(limit if limit is not None else -1)
