"""Where a module's symbols lie: --symbols folders, the system's debug files, .gnu_debuglink, the file itself.

Facts: GDB manual "Debugging Information in Separate Files" (build-id paths, .gnu_debuglink and its CRC);
MiniDebugInfo (.gnu_debugdata): GDB manual "Debugging information in a special section".
"""

from __future__ import annotations

import lzma
import mmap
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path, PurePosixPath

from memleak_android.host.elf_sections import SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, BadElf, ElfSections

SYSTEM_DEBUG_DIR = Path("/usr/lib/debug")
MAX_INDEXED_FILES = 200_000  # a --symbols folder of a whole platform build has some 50,000 files
MAX_READ_BYTES = 512 << 20
HEAD_BYTES = 64 << 10
MAX_DEBUGDATA_BYTES = 64 << 20  # unpacked; Android's largest is below 3 MB


class Content(IntEnum):
    """The best kind of symbols a file holds; higher is better."""

    NOTHING = 0
    DYNSYM = 1
    SYMTAB = 2
    DEBUGDATA = 3
    DEBUG_INFO = 4


@dataclass(frozen=True, slots=True)
class SymbolFile:
    """A file that describes a module. path is None for bytes that came with the module."""

    path: Path | None
    elf: ElfSections
    content: Content


def open_elf(path: Path) -> ElfSections:
    """Raises OSError, or BadElf when it is no regular ELF file."""
    return ElfSections(memoryview(_read_file(path)))


def read_build_id(path: Path) -> str:
    """The build-id, from the file's first bytes where it lies there, as linkers place it. Raises as open_elf."""
    head = ElfSections(memoryview(_read_file(path, HEAD_BYTES)))
    return head.build_id or open_elf(path).build_id


def _read_file(path: Path, limit: int | None = None) -> bytes | mmap.mmap:
    """Read rather than mapped where memory allows: a map dies with SIGBUS when somebody rebuilds the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            raise BadElf("not a regular file")
        if limit is None and status.st_size > MAX_READ_BYTES:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return file.read(limit if limit is not None else -1)


def classify(elf: ElfSections) -> Content:
    if elf.find(".debug_info"):
        return Content.DEBUG_INFO
    if elf.find(".gnu_debugdata"):
        return Content.DEBUGDATA
    kinds = {s.type for s in elf.sections if s.size and s.type != SHT_NOBITS}
    if SHT_SYMTAB in kinds:
        return Content.SYMTAB
    return Content.DYNSYM if SHT_DYNSYM in kinds else Content.NOTHING


def unpack_debugdata(elf: ElfSections) -> ElfSections | None:
    """The small ELF file packed into .gnu_debugdata; None where there is none or it cannot be read."""
    section = elf.find(".gnu_debugdata")
    if section is None:
        return None
    try:
        decompressor = lzma.LZMADecompressor(memlimit=MAX_DEBUGDATA_BYTES)
        unpacked = decompressor.decompress(elf.content(section), max_length=MAX_DEBUGDATA_BYTES)
        return ElfSections(memoryview(unpacked))
    except (lzma.LZMAError, EOFError, BadElf):
        return None


class DebugFileSearch:
    """Finds the files that describe a module, best first. Folders are searched through once, when first needed.

    notes: files that looked right and were refused, one sentence each.
    """

    def __init__(self, symbol_dirs: Sequence[Path], system_dir: Path = SYSTEM_DEBUG_DIR) -> None:
        self._symbol_dirs = tuple(symbol_dirs)
        self._system_dir = system_dir
        self._by_build_id: dict[str, list[Path]] | None = None
        self._by_name: dict[str, list[tuple[Path, str]]] = {}
        self.notes = [f"no folder or file {d} (--symbols)" for d in self._symbol_dirs if not d.exists()]

    def find(self, path: str, build_id: str, own: ElfSections | None) -> list[SymbolFile]:
        """Files for the module mapped from `path`, best content first, the module's own file among them."""
        found = [] if own is None else [SymbolFile(None, own, classify(own))]
        for candidate in self._candidates(path, build_id, own):
            try:
                elf = open_elf(candidate)
            except (OSError, BadElf):
                continue
            if build_id and elf.build_id and elf.build_id != build_id:
                self._refuse(candidate, elf.build_id, path, build_id)
            else:
                found.append(SymbolFile(candidate, elf, classify(elf)))
        if not any(f.path in self._indexed(build_id) for f in found if f.path):
            self._note_same_name(path, build_id)
        return sorted(found, key=lambda f: -f.content)

    def _candidates(self, path: str, build_id: str, own: ElfSections | None) -> Iterator[Path]:
        if build_id:
            yield from self._indexed(build_id)
            for folder in (*self._symbol_dirs, self._system_dir):
                yield folder / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        if own is not None:
            yield from self._debuglink_candidates(path, own, build_id)

    def _debuglink_candidates(self, path: str, own: ElfSections, build_id: str) -> Iterator[Path]:
        section = own.find(".gnu_debuglink")
        if section is None:
            return
        content = bytes(own.content(section))
        name, _, _ = content.partition(b"\0")
        if not name or b"/" in name or len(content) < 4:
            return
        crc = int.from_bytes(content[-4:], "little")
        folder = PurePosixPath(path).parent
        file_name = os.fsdecode(name)
        places = (Path(folder), Path(folder, ".debug"), Path(f"{self._system_dir}{folder}"))
        for candidate in (place / file_name for place in places):
            if self._crc_matches(candidate, crc):
                yield candidate
            elif build_id and candidate != Path(path):
                yield candidate  # its build-id decides

    @staticmethod
    def _crc_matches(path: Path, crc: int) -> bool:
        try:
            return path.is_file() and zlib.crc32(open_elf(path).data) == crc
        except (OSError, BadElf):
            return False

    def _indexed(self, build_id: str) -> list[Path]:
        if self._by_build_id is None:
            self._by_build_id = {}
            self._index()
        return self._by_build_id.get(build_id, []) if build_id else []

    def _index(self) -> None:
        assert self._by_build_id is not None
        for path in _files_below(self._symbol_dirs):
            try:
                build_id = read_build_id(path)
            except (OSError, BadElf):
                continue
            self._by_name.setdefault(path.name.removesuffix(".debug"), []).append((path, build_id))
            if build_id:
                self._by_build_id.setdefault(build_id, []).append(path)

    def _note_same_name(self, path: str, build_id: str) -> None:
        for candidate, other in self._by_name.get(PurePosixPath(path).name, []):
            if build_id and other != build_id:
                self._refuse(candidate, other, path, build_id)

    def _refuse(self, candidate: Path, found: str, path: str, wanted: str) -> None:
        note = (
            f"{candidate} has build-id {found or 'none'}, {PurePosixPath(path).name} has {wanted}; not used"
        )
        if note not in self.notes:
            self.notes.append(note)


def _files_below(folders: Sequence[Path]) -> Iterator[Path]:
    """Regular files below the folders (or the files themselves); links to folders are not followed."""
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
