"""Headers, sections, build-id and symbol tables of an ELF file, read from untrusted bytes.

Every offset is checked against the file's length, so that a hostile file costs bounded time and memory: a folder of
--symbols has up to 50,000 files, and a session opens every loaded object. pyelftools, whose tables of numbers serve here,
needs 600 to 900 µs for the headers of a file and this 30 to 80.
Facts: System V gABI chapters 4 and 5; build-id note: binutils ld manual, --build-id.
"""

from __future__ import annotations

import itertools
import lzma
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from elftools.elf.constants import P_FLAGS, SH_FLAGS
from elftools.elf.enums import ENUM_E_MACHINE, ENUM_P_TYPE_BASE, ENUM_SH_TYPE_BASE, ENUM_ST_INFO_TYPE
from numpy.typing import NDArray

from memleak_android.unwind.errors import BadElfError

# Numbers by the names of the gABI and its supplements.
_MACHINES: Mapping[str, int] = ENUM_E_MACHINE
_SEGMENT_TYPES: Mapping[str, int] = ENUM_P_TYPE_BASE
_SECTION_TYPES: Mapping[str, int] = ENUM_SH_TYPE_BASE
_SYMBOL_TYPES: Mapping[str, int] = ENUM_ST_INFO_TYPE

ELFCLASS32, ELFCLASS64 = 1, 2
EM_386, EM_ARM = _MACHINES["EM_386"], _MACHINES["EM_ARM"]
EM_X86_64, EM_AARCH64 = _MACHINES["EM_X86_64"], _MACHINES["EM_AARCH64"]
MACHINE_NAMES = {EM_386: "i386", EM_ARM: "arm32", EM_X86_64: "x86_64", EM_AARCH64: "arm64"}
PT_LOAD, PT_DYNAMIC = _SEGMENT_TYPES["PT_LOAD"], _SEGMENT_TYPES["PT_DYNAMIC"]
PT_INTERP, PT_NOTE = _SEGMENT_TYPES["PT_INTERP"], _SEGMENT_TYPES["PT_NOTE"]
PT_GNU_PROPERTY, PT_GNU_EH_FRAME = _SEGMENT_TYPES["PT_GNU_PROPERTY"], _SEGMENT_TYPES["PT_GNU_EH_FRAME"]
PF_X: int = P_FLAGS.PF_X
SHT_NULL, SHT_SYMTAB = _SECTION_TYPES["SHT_NULL"], _SECTION_TYPES["SHT_SYMTAB"]
SHT_NOTE, SHT_NOBITS = _SECTION_TYPES["SHT_NOTE"], _SECTION_TYPES["SHT_NOBITS"]
SHT_DYNSYM = _SECTION_TYPES["SHT_DYNSYM"]
SHF_EXECINSTR: int = SH_FLAGS.SHF_EXECINSTR
SHF_COMPRESSED: int = SH_FLAGS.SHF_COMPRESSED
STT_NOTYPE, STT_OBJECT = _SYMBOL_TYPES["STT_NOTYPE"], _SYMBOL_TYPES["STT_OBJECT"]
STT_FUNC, STT_GNU_IFUNC = _SYMBOL_TYPES["STT_FUNC"], _SYMBOL_TYPES["STT_LOOS"]
NT_GNU_BUILD_ID = 3
BUILD_ID = re.compile(r"[0-9a-f]{8,128}")
MAX_SECTIONS = 65_536  # e_shnum's own range; larger counts (in section 0) exist in no loadable file
MAX_SEGMENTS = 4_096
MAX_NOTE_RANGES = 64
MAX_NOTES = 1_024  # in one range
MAX_SECTION_NAME = 256
MAX_BUILD_ID_BYTES = 64
MAX_SYMBOL_TABLES = 4  # real files have .symtab and .dynsym
SECTION_BYTES_MAX = 1 << 29  # of a table that is read; string tables of debug builds have some 100 MB
UNPACKED_MAX = 1 << 28  # bytes; beyond any .debug_frame and any .gnu_debugdata, a bomb stops here
_XZ_MEMORY_MAX = 1 << 27  # xz -9 needs 65 MiB to unpack
_PIECE = 1 << 20

_EHDR = {ELFCLASS32: "<HHIIIIIHHHHHH", ELFCLASS64: "<HHIQQQIHHHHHH"}
_PHDR = {ELFCLASS32: "<IIIIIIII", ELFCLASS64: "<IIQQQQQQ"}
_SHDR = {ELFCLASS32: "<IIIIIII", ELFCLASS64: "<IIQQQQI"}
_NOTE = struct.Struct("<III")
# Elf64_Sym and Elf32_Sym
SYMBOL_64 = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
SYMBOL_32 = np.dtype(
    [("name", "<u4"), ("value", "<u4"), ("size", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")]
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header. Offsets are from the ELF header, wherever it is in the file."""

    type: int
    flags: int
    file_offset: int
    vaddr: int
    file_bytes: int
    memory_bytes: int

    @property
    def is_executable(self) -> bool:
        return bool(self.flags & PF_X)


@dataclass(frozen=True, slots=True)
class Section:
    """A section, or a segment that is as good as one. file_offset and size are of the file."""

    name: str
    vaddr: int
    file_offset: int
    size: int
    type: int = 1  # SHT_PROGBITS
    flags: int = 0
    link: int = 0


class ElfSections:
    """One little-endian ELF file of 32 or 64 bits. Raises BadElfError for anything else.

    data: the whole file. path: for messages.
    segments, sections: those whose headers lie inside the file. Stripped or cut section headers are not an error.
    """

    def __init__(self, data: memoryview, path: str = "") -> None:
        if len(data) < 52:
            raise BadElfError(path, "too short")
        if bytes(data[:4]) != b"\x7fELF":
            raise BadElfError(path, "no ELF magic")
        self.elf_class, byte_order = data[4], data[5]
        if self.elf_class not in _EHDR or byte_order != 1:
            raise BadElfError(path, f"class {self.elf_class}, byte order {byte_order}")
        layout = _EHDR[self.elf_class]
        if 16 + struct.calcsize(layout) > len(data):
            raise BadElfError(path, "too short")
        self.path = path
        self.data = data
        header = struct.unpack_from(layout, data, 16)
        self.type, self.machine = header[:2]
        self.entry_vaddr, self._phoff, self._shoff = header[3:6]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._shstrndx = header[8:13]
        self.segments = tuple(self._read_segments())

    def check_segments(self) -> None:
        """Raises BadElfError if program headers are missing."""
        if len(self.segments) < min(self._phnum, MAX_SEGMENTS):
            reason = f"{self._phnum} program headers at {self._phoff:#x} are outside of it"
            raise BadElfError(self.path, reason)

    @property
    def is_64_bit(self) -> bool:
        return bool(self.elf_class == ELFCLASS64)

    @property
    def first_load_vaddr(self) -> int:
        return next((segment.vaddr for segment in self.segments if segment.type == PT_LOAD), 0)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        layout = _SHDR[self.elf_class]
        if not self._shoff or self._shentsize < struct.calcsize(layout) or self._shoff >= len(self.data):
            return ()
        count = min(self._shnum, MAX_SECTIONS, (len(self.data) - self._shoff) // self._shentsize)
        headers = [
            struct.unpack_from(layout, self.data, self._shoff + i * self._shentsize) for i in range(count)
        ]
        names = memoryview(b"")
        if self._shstrndx < len(headers) and headers[self._shstrndx][1] != SHT_NOBITS:
            offset, size = headers[self._shstrndx][4:6]
            names = self.data[offset : offset + size]
        return tuple(
            Section(text_at(names, name, MAX_SECTION_NAME), address, offset, size, type_, flags, link)
            for name, type_, flags, address, offset, size, link in headers
        )

    @cached_property
    def build_id(self) -> str:
        """In hex; "" where the file has none."""
        ranges = [(s.file_offset, s.size) for s in self.sections if s.type == SHT_NOTE]
        ranges += [(s.file_offset, s.file_bytes) for s in self.segments if s.type == PT_NOTE]
        for offset, size in ranges[:MAX_NOTE_RANGES]:
            notes = iterate_notes(self.data[offset : offset + size])
            for kind, owner, content in itertools.islice(notes, MAX_NOTES):
                if kind == NT_GNU_BUILD_ID and owner == b"GNU\0" and len(content) <= MAX_BUILD_ID_BYTES:
                    return content.hex()
        return ""

    @property
    def is_cut(self) -> bool:
        """Whether headers name bytes behind the end of the file."""
        ends = [s.file_offset + s.size for s in self.sections if s.type != SHT_NOBITS]
        ends += [s.file_offset + s.file_bytes for s in self.segments]
        if self._shoff:
            ends.append(self._shoff + self._shentsize * self._shnum)
        return max(ends, default=0) > len(self.data)

    def find(self, name: str) -> Section | None:
        """The first section of that name that has bytes in this file (not SHT_NOBITS)."""
        return next((s for s in self.sections if s.name == name and s.type != SHT_NOBITS and s.size), None)

    def content(self, section: Section) -> memoryview:
        """The section's bytes in the file; cut where the file ends, and at SECTION_BYTES_MAX."""
        if section.type == SHT_NOBITS:
            return self.data[:0]
        return self.data[section.file_offset : section.file_offset + min(section.size, SECTION_BYTES_MAX)]

    def symbol_tables(self) -> Iterator[tuple[Section, NDArray[np.void], memoryview]]:
        """.symtab and .dynsym in the file's order: section, symbols and a copy of their string table.

        A view of the string table would keep the whole file, debug information included, in memory.
        """
        layout = self.symbol_layout
        tables = [s for s in self.sections if s.type in (SHT_SYMTAB, SHT_DYNSYM)]
        for section in [s for s in tables if s.link < len(self.sections)][:MAX_SYMBOL_TABLES]:
            content = self.content(section)
            symbols = np.frombuffer(content, layout, len(content) // layout.itemsize)
            yield section, symbols, memoryview(bytes(self.content(self.sections[section.link])))

    @property
    def symbol_layout(self) -> np.dtype[np.void]:
        return SYMBOL_64 if self.is_64_bit else SYMBOL_32

    def unpack_debugdata(self) -> ElfSections | None:
        """The small ELF file packed into .gnu_debugdata; None without a usable one."""
        section = self.find(".gnu_debugdata")
        if section is None:
            return None
        try:
            return ElfSections(memoryview(unpack_xz(self.content(section))))
        except BadElfError:
            return None

    def _read_segments(self) -> Iterator[Segment]:
        layout = _PHDR[self.elf_class]
        if self._phentsize < struct.calcsize(layout):
            return
        for i in range(min(self._phnum, MAX_SEGMENTS)):
            at = self._phoff + i * self._phentsize
            if at + struct.calcsize(layout) > len(self.data):
                return
            raw = struct.unpack_from(layout, self.data, at)
            if self.is_64_bit:
                type_, flags, offset, vaddr, _, file_bytes, memory_bytes, _ = raw
            else:
                type_, offset, vaddr, _, file_bytes, memory_bytes, flags, _ = raw
            yield Segment(type_, flags, offset, vaddr, file_bytes, memory_bytes)


def text_at(strings: memoryview, offset: int, limit: int = 65_536) -> str:
    """The NUL-terminated text at `offset` of a string table; "" outside of it."""
    raw = bytes(strings[offset : offset + 128])
    end = raw.find(b"\0")
    if end < 0 and len(raw) == 128:
        raw = bytes(strings[offset : offset + limit])
        end = raw.find(b"\0")
    return (raw if end < 0 else raw[:end]).decode("utf-8", "replace")


def has_name(symbols: NDArray[np.void], strings: bytes | memoryview, name: bytes) -> NDArray[np.bool_]:
    """Which symbols have this name. Linkers let a name be the tail of another one, so any occurrence may be meant."""
    found = [match.start() for match in re.finditer(re.escape(name) + b"\0", strings)]
    return np.isin(symbols["name"], found)


def unpack_xz(data: memoryview) -> bytes:
    """An xz stream unpacked to UNPACKED_MAX bytes at most; b"" when it is damaged or larger."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_MAX)
    pieces: list[bytes] = []
    left = UNPACKED_MAX
    try:
        piece = unpacker.decompress(data, _PIECE)
        while piece or not (unpacker.eof or unpacker.needs_input):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                return b""
            if unpacker.eof:
                break
            piece = unpacker.decompress(b"", _PIECE)
    except (lzma.LZMAError, EOFError, MemoryError):
        return b""
    return b"".join(pieces) if unpacker.eof else b""


def iterate_notes(data: bytes | memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    """(type, owner, value) of ELF notes (elf(5))."""
    at = 0
    while at + 12 <= len(data):
        owner_bytes, value_bytes, kind = _NOTE.unpack_from(data, at)
        value_at = at + 12 + (owner_bytes + 3 & ~3)
        if value_at + value_bytes > len(data):
            return
        owner = bytes(data[at + 12 : at + 12 + owner_bytes])
        yield kind, owner, bytes(data[value_at : value_at + value_bytes])
        at = value_at + (value_bytes + 3 & ~3)
