"""Finds a module's symbols: --symbols folders, the system's debug files, .gnu_debuglink, debuginfod, the file itself.

Facts: GDB manual "Debugging Information in Separate Files" (build-id paths, .gnu_debuglink and its CRC);
MiniDebugInfo (.gnu_debugdata): GDB manual "Debugging information in a special section".
"""

import os
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path, PurePosixPath

from memleak_android.host.symbols.debuginfod import Debuginfod, debuginfod_of, default_cache
from memleak_android.host.symbols.symbol_locations import SymbolLocation, build_ids
from memleak_android.unwind.elf_headers import SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, ElfSections
from memleak_android.unwind.errors import BadElfError

SYSTEM_DEBUG_DIR = Path("/usr/lib/debug")
CRC_BYTES_MAX = (
    1 << 30
)  # of a file named by .gnu_debuglink; a second, and more than debuginfod's client takes
_DEBUGLINK_BYTES_MAX = 4096  # a file name (NAME_MAX is 255), padding and the CRC
MAX_INDEXED_FILES = 200_000  # a --symbols folder of a whole platform build has some 50,000 files


class Content(IntEnum):
    """The best kind of symbols a file holds; higher is better."""

    NOTHING = 0
    DYNSYM = 1
    SYMTAB = 2
    DEBUGDATA = 3
    DEBUG_INFO = 4


@dataclass(frozen=True, slots=True)
class SymbolFile:
    """A file that describes a module. location: None for bytes that came with the module."""

    location: SymbolLocation | None
    elf: ElfSections
    content: Content


def open_elf(path: Path) -> ElfSections:
    """Raises OSError, or BadElfError if it is not a regular ELF file."""
    return SymbolLocation(path).open()


def classify(elf: ElfSections) -> Content:
    if elf.find(".debug_info"):
        return Content.DEBUG_INFO
    if elf.find(".gnu_debugdata"):
        return Content.DEBUGDATA
    kinds = {s.type for s in elf.sections if s.size and s.type != SHT_NOBITS}
    if SHT_SYMTAB in kinds:
        return Content.SYMTAB
    return Content.DYNSYM if SHT_DYNSYM in kinds else Content.NOTHING


_ByBuildId = defaultdict[str, list[SymbolLocation]]
_ByName = defaultdict[str, list[tuple[SymbolLocation, str]]]


class SymbolIndex:
    """Index of --symbols folders, built once at the first use."""

    def __init__(self, symbol_dirs: Sequence[Path]) -> None:
        self._symbol_dirs = tuple(symbol_dirs)

    def of_build_id(self, build_id: str) -> list[SymbolLocation]:
        return self._searched[0].get(build_id, []) if build_id else []

    def of_name(self, library: str) -> list[tuple[SymbolLocation, str]]:
        """Locations and their build-ids."""
        return self._searched[1].get(library, [])

    @cached_property
    def _searched(self) -> tuple[_ByBuildId, _ByName]:
        by_build_id, by_name = _ByBuildId(list), _ByName(list)
        for path in _files_below(self._symbol_dirs):
            for location, build_id in build_ids(path):
                by_name[location.library].append((location, build_id))
                if build_id:
                    by_build_id[build_id].append(location)
        return by_build_id, by_name


class DebugFileSearch:
    """Finds the files that describe a module, best first.

    index: of the same folders, if already made.
    notes: refused files and failed servers, one sentence each.
    """

    def __init__(
        self,
        symbol_dirs: Sequence[Path],
        system_dir: Path = SYSTEM_DEBUG_DIR,
        servers: Debuginfod | None = None,
        index: SymbolIndex | None = None,
    ) -> None:
        self._symbol_dirs = tuple(symbol_dirs)
        self._system_dir = system_dir
        self._servers = servers or debuginfod_of(os.environ, default_cache())
        self._index = index or SymbolIndex(symbol_dirs)
        self._notes = [f"no folder or file {d} (--symbols)" for d in self._symbol_dirs if not d.exists()]

    @property
    def notes(self) -> list[str]:
        return [*self._notes, *self._servers.notes]

    def find(self, path: str, build_id: str, own: ElfSections | None) -> list[SymbolFile]:
        """Files for the module mapped from `path`, best content first, including the module's own file."""
        found = [] if own is None else [SymbolFile(None, own, classify(own))]
        for candidate, crc in self._candidates(path, build_id, own):
            self._add(candidate, found, path, build_id, crc)
        if not any(f.content is Content.DEBUG_INFO for f in found) and (sent := self._servers.find(build_id)):
            self._add(SymbolLocation(sent), found, path, build_id)
        if not any(f.location in self._index.of_build_id(build_id) for f in found if f.location):
            for candidate, other in self._index.of_name(PurePosixPath(path).name):
                if build_id and other != build_id:
                    self._refuse(candidate, other, path, build_id)
        return sorted(found, key=lambda f: -f.content)

    def _add(
        self,
        location: SymbolLocation,
        found: list[SymbolFile],
        path: str,
        build_id: str,
        crc: int | None = None,
    ) -> None:
        """crc: of the .gnu_debuglink that names the file. It decides unless both have a build-id."""
        try:
            elf = location.open()
        except (OSError, BadElfError):
            return
        if build_id and elf.build_id and elf.build_id != build_id:
            self._refuse(location, elf.build_id, path, build_id)
        elif crc is None or (build_id and elf.build_id) or _has_crc(elf, crc):
            found.append(SymbolFile(location, elf, classify(elf)))
        else:
            name = PurePosixPath(path).name
            self._note(f"{location} does not match the checksum in the .gnu_debuglink of {name}; not used")

    def _candidates(
        self, path: str, build_id: str, own: ElfSections | None
    ) -> Iterator[tuple[SymbolLocation, int | None]]:
        """Locations, and the CRC-32 of those that a .gnu_debuglink names."""
        if build_id:
            for location in self._index.of_build_id(build_id):
                yield location, None
            for folder in (*self._symbol_dirs, self._system_dir):
                yield SymbolLocation(folder / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"), None
        if own is not None:
            yield from self._debuglink_candidates(path, own)

    def _debuglink_candidates(self, path: str, own: ElfSections) -> Iterator[tuple[SymbolLocation, int]]:
        section = own.find(".gnu_debuglink")
        if section is None or section.size > _DEBUGLINK_BYTES_MAX:
            return
        content = bytes(own.content(section))
        name, _, _ = content.partition(b"\0")
        if not name or b"/" in name or len(content) < 4:
            return
        crc = int.from_bytes(content[-4:], "little")
        folder = PurePosixPath(path).parent
        file_name = os.fsdecode(name)
        candidates = (Path(folder), Path(folder, ".debug"), Path(f"{self._system_dir}{folder}"))
        for candidate in (location / file_name for location in candidates):
            if candidate != Path(path):
                yield SymbolLocation(candidate), crc

    def _refuse(self, candidate: SymbolLocation, found: str, path: str, wanted: str) -> None:
        name = PurePosixPath(path).name
        self._note(f"{candidate} has build-id {found or 'none'}, {name} has {wanted}; not used")

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)


def _has_crc(elf: ElfSections, crc: int) -> bool:
    """Whether all bytes of a file have this CRC-32; never for a larger one than CRC_BYTES_MAX."""
    return len(elf.data) <= CRC_BYTES_MAX and zlib.crc32(elf.data) == crc


def _files_below(folders: Sequence[Path]) -> Iterator[Path]:
    """Regular files below the folders, or the files themselves. Links to folders are not followed."""
    count = 0
    for folder in folders:
        if folder.is_file():
            yield folder
        for parent, _, names in os.walk(folder):
            for name in sorted(names):
                count += 1
                if count > MAX_INDEXED_FILES:
                    return
                yield Path(parent, name)
