"""Headers, sections, build-id and symbol tables of an ELF file, read from untrusted bytes.

Every offset is checked against the file's length, so that a hostile file costs bounded time and memory. This does not use
unwind/elf_image.py because pyelftools needs 600 to 900 µs for the headers of a file and this 30 to 80. A folder of
--symbols has up to 50,000 files, and a session opens every loaded object.
Facts: System V gABI chapters 4 and 5; build-id note: binutils ld manual, --build-id.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.elf_image import iterate_notes, unpack_xz

ELFCLASS32, ELFCLASS64 = 1, 2
ET_EXEC, ET_DYN = 2, 3
EM_386, EM_ARM, EM_X86_64, EM_AARCH64 = 3, 40, 62, 183
MACHINE_NAMES = {EM_386: "i386", EM_ARM: "arm32", EM_X86_64: "x86_64", EM_AARCH64: "arm64"}
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_GNU_PROPERTY = 1, 2, 3, 4, 0x6474E553
PF_X = 1
SHT_SYMTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 7, 8, 11
SHF_EXECINSTR, SHF_COMPRESSED = 0x4, 0x800
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC = 0, 1, 2, 10
NT_GNU_BUILD_ID = 3
MAX_SECTIONS = 65_536  # e_shnum's own range; larger counts (in section 0) exist in no loadable file
MAX_SEGMENTS = 4_096
MAX_NOTE_RANGES = 64
MAX_NOTES = 1_024  # in one range
MAX_SECTION_NAME = 256
MAX_BUILD_ID_BYTES = 64
MAX_SYMBOL_TABLES = 4  # real files have .symtab and .dynsym

_EHDR = {ELFCLASS32: "<HHIIIIIHHHHHH", ELFCLASS64: "<HHIQQQIHHHHHH"}
_PHDR = {ELFCLASS32: "<IIIIIIII", ELFCLASS64: "<IIQQQQQQ"}
_SHDR = {ELFCLASS32: "<IIIIIII", ELFCLASS64: "<IIQQQQI"}
# Elf64_Sym and Elf32_Sym
SYMBOL_64 = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
SYMBOL_32 = np.dtype(
    [("name", "<u4"), ("value", "<u4"), ("size", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")]
)


class BadElf(ValueError):
    """Not an ELF file, or one whose headers point outside of it."""


@dataclass(frozen=True, slots=True)
class Segment:
    type: int
    flags: int
    file_offset: int
    vaddr: int
    file_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Section:
    """One section header. `address` is a vaddr; `offset` and `size` are of the file."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


class ElfSections:
    """One little-endian ELF file of 32 or 64 bits. Raises BadElf for anything else.

    data: the whole file.
    segments, sections: those whose headers lie inside the file. Stripped or cut section headers are not an error.
    """

    def __init__(self, data: memoryview) -> None:
        if len(data) < 52:
            raise BadElf("too short")
        if bytes(data[:4]) != b"\x7fELF":
            raise BadElf("no ELF magic")
        self.elf_class, byte_order = data[4], data[5]
        if self.elf_class not in _EHDR or byte_order != 1:
            raise BadElf(f"class {self.elf_class}, byte order {byte_order}")
        layout = _EHDR[self.elf_class]
        if 16 + struct.calcsize(layout) > len(data):
            raise BadElf("too short")
        self.data = data
        header = struct.unpack_from(layout, data, 16)
        self.type, self.machine = header[:2]
        self.entry_vaddr, self._phoff, self._shoff = header[3:6]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._shstrndx = header[8:13]
        self.segments = tuple(self._read_segments())

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
        return tuple(Section(text_at(names, name, MAX_SECTION_NAME), *rest) for name, *rest in headers)

    @cached_property
    def build_id(self) -> str:
        """In hex; "" where the file has none."""
        ranges = [(s.offset, s.size) for s in self.sections if s.type == SHT_NOTE]
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
        ends = [s.offset + s.size for s in self.sections if s.type != SHT_NOBITS]
        ends += [s.file_offset + s.file_bytes for s in self.segments]
        if self._shoff:
            ends.append(self._shoff + self._shentsize * self._shnum)
        return max(ends, default=0) > len(self.data)

    def find(self, name: str) -> Section | None:
        """The first section of that name that has bytes in this file (not SHT_NOBITS)."""
        return next((s for s in self.sections if s.name == name and s.type != SHT_NOBITS and s.size), None)

    def content(self, section: Section) -> memoryview:
        """The section's bytes in the file; cut where the file ends."""
        if section.type == SHT_NOBITS:
            return self.data[:0]
        return self.data[section.offset : section.offset + section.size]

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
        except BadElf:
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
