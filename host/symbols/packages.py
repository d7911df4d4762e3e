"""The package that a module belongs to: of a wheel (.dist-info), of npm (package.json), of dpkg.

Files are read, nothing is run. A file of this machine counts only if it is the module: by its build-id, or, while a session
runs, by its bytes. A recording of a module without a build-id says nothing of the files here.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memleak_android.host.profile.answer import Package
from memleak_android.host.symbols.symbol_locations import read_build_id
from memleak_android.unwind.errors import BadElfError
from memleak_android.unwind.file_reading import contents, file_status, open_regular, read_file

if TYPE_CHECKING:
    from memleak_android.host.symbols.symbolizer import SymbolModule

DPKG = Path("/var/lib/dpkg")
_FILE_BYTES_MAX = 64 << 20
_LISTED_BYTES_MAX = 256 << 20  # of all file lists; Debian 12 with 900 packages has 9 MB
_LISTS_MAX = 20_000
_TEXT_MAX = 200  # characters of a name, of a version
_WHEEL = re.compile(r"(.*/(?:site|dist)-packages)/(([^/]+).*)")
_NPM = re.compile(r".*/node_modules/(?:@[^/]+/)?[^/]+(?=/)")
# What dpkg owns; elsewhere are the user's own files, for which no list is read.
_DPKG_PATH = re.compile(r"/(usr/(?!local/)|lib|bin/|sbin/|opt/).*")
_DISTRIBUTION = re.compile(rb"^(Name|Version):(.+)$", re.MULTILINE)
_UNREADABLE = (OSError, ValueError, BadElfError)


class _Lists:
    """Reads the file lists of packages, and no more of them than a search may cost."""

    def __init__(self) -> None:
        self._left = _LISTED_BYTES_MAX

    def read(self, files: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
        for file in files:
            data = _read(file)
            self._left -= len(data)
            if self._left < 0:
                return
            yield file, data


class PackageSearch:
    """Packages of modules; each is searched once. is_live: modules are those of a running session."""

    def __init__(self, is_live: bool = False, dpkg: Path = DPKG) -> None:
        self._is_live = is_live
        self._dpkg = dpkg
        self._records = _Lists()
        self._found: dict[tuple[str, str], Package | None] = {}

    def find(self, modules: Sequence[SymbolModule]) -> list[Package | None]:
        new = {(each.path, each.build_id): each for each in modules}
        new = {key: each for key, each in new.items() if key not in self._found}
        paths = [each.path for each in new.values() if each.path.startswith("/") and self._is_here(each)]
        owners = {path: package for path in paths if (package := _of_npm(path))}
        owners |= _of_wheels([path for path in paths if path not in owners], self._records)
        rest = [path for path in paths if path not in owners and _DPKG_PATH.fullmatch(path)]
        owners |= _of_dpkg(self._dpkg, rest)
        self._found |= {key: owners.get(key[0]) for key in new}
        return [self._found[each.path, each.build_id] for each in modules]

    def _is_here(self, module: SymbolModule) -> bool:
        try:
            if module.build_id:
                return read_build_id(Path(module.path)) == module.build_id
            size = len(module.data)
            if not self._is_live or not size or file_status(module.path).st_size != size:
                return False
            descriptor = open_regular(module.path)
            try:
                return contents(descriptor, module.path) == module.data
            finally:
                os.close(descriptor)
        except _UNREADABLE:
            return False


def _of_npm(path: str) -> Package | None:
    folder = _NPM.match(path)
    try:
        found = msgspec.json.decode(read_file(f"{folder[0]}/package.json", 1 << 20)) if folder else None
    except (*_UNREADABLE, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    name, version = found.get("name"), found.get("version")
    return _package(name, version, "npm") if isinstance(name, str) and isinstance(version, str) else None


def _of_wheels(paths: Sequence[str], lists: _Lists) -> dict[str, Package]:
    """By the RECORD that names a file (PEP 376, PEP 427); one pass over those of a folder for all its files."""
    folders = dict[str, dict[bytes, str]]()
    for path in paths:
        if split := _WHEEL.fullmatch(path):
            folders.setdefault(split[1], {})[os.fsencode(split[2])] = path
    return {
        path: package
        for site, files in folders.items()
        for info, path in _distributions(Path(site), files, lists)
        if (package := of_distribution(_read(info / "METADATA")))
    }


def _distributions(site: Path, files: dict[bytes, str], lists: _Lists) -> Iterator[tuple[Path, str]]:
    """files: paths by their names in RECORD. First of the distributions that are called like the folder of a file."""
    firsts = tuple({re.split("[/.]", os.fsdecode(name).lower().lstrip("_"))[0] for name in files})
    infos = [name for name in _names_in(site) if name.endswith(".dist-info")]
    infos.sort(key=lambda name: not name.lower().startswith(firsts))
    left = dict(files)
    for record, data in lists.read(site / info / "RECORD" for info in infos):
        for line in io.BytesIO(data):
            if path := left.pop(line.partition(b",")[0], None):
                yield record.parent, path
        if not left:
            return


def of_distribution(metadata: bytes) -> Package | None:
    head, _, _ = metadata[: 1 << 16].partition(b"\n\n")
    about = dict(_DISTRIBUTION.findall(head))
    name, version = (about.get(key, b"").strip().decode("utf-8", "replace") for key in (b"Name", b"Version"))
    return _package(name, version, "python")


def _of_dpkg(folder: Path, paths: Sequence[str]) -> dict[str, Package]:
    """By the lists of installed files (dpkg-query(1)); one pass over them for all paths."""
    wanted = {os.fsencode(form): path for path in paths for form in (path, path.removeprefix("/usr"))}
    owners = dict[str, str]()
    names = (folder / "info" / name for name in _names_in(folder / "info") if name.endswith(".list"))
    for file, listed in _Lists().read(names) if wanted else ():
        for form, path in wanted.items():
            if b"\n" + form + b"\n" in listed:
                owners[path] = file.name.removesuffix(".list")
        if len(owners) == len(paths):
            break
    status = _read(folder / "status") if owners else b""
    return {path: found for path, owner in owners.items() if (found := _installed(status, owner))}


def _installed(status: bytes, owner: str) -> Package | None:
    """owner: `zlib1g:amd64`, or without the architecture."""
    name, _, arch = owner.partition(":")
    for stanza in re.finditer(
        rb"^Package: %b\n(?:.+\n)*" % re.escape(os.fsencode(name)), status, re.MULTILINE
    ):
        fields = dict(re.findall(rb"^(Architecture|Version): (.+)$", stanza[0], re.MULTILINE))
        if not arch or fields.get(b"Architecture") == os.fsencode(arch):
            return _package(name, fields.get(b"Version", b"").decode("utf-8", "replace"), "dpkg")
    return None


def _package(name: str, version: str, manager: str) -> Package | None:
    return Package(name[:_TEXT_MAX], version[:_TEXT_MAX], manager) if name else None


def _names_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(_LISTS_MAX), strict=False))
    except OSError:
        return []


def _read(file: Path) -> bytes:
    try:
        return read_file(file, _FILE_BYTES_MAX)
    except (OSError, ValueError):
        return b""
