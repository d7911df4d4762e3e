"""The sections of an ELF file that symbols come from, read from bytes nobody vouches for.

Not a general ELF reader: only section headers, the build-id, the address of the first PT_LOAD and where all ends. Every
offset is checked against the file's length, so that a hostile file costs bounded time and memory.
Facts: System V gABI chapters 4 and 5; build-id note: binutils ld manual, --build-id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

SHT_SYMTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 7, 8, 11
SHF_EXECINSTR = 0x4
PT_LOAD, PT_NOTE = 1, 4
EM_ARM = 40
MAX_SECTIONS = 65_536  # e_shnum's own range; larger counts (in section 0) exist in no loadable file
MAX_SEGMENTS = 4_096
MAX_NOTE_RANGES = 64
MAX_NOTES = 1_024  # in one range
MAX_SECTION_NAME = 256
MAX_BUILD_ID_BYTES = 64
NT_GNU_BUILD_ID = 3


class BadElf(ValueError):
    """Not an ELF file, or one whose headers point outside of it."""


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
    """Section headers, build-id and load address of one ELF file.

    data: the whole file. Raises BadElf for anything that is no little-endian ELF file of 32 or 64 bits.
    A file whose section headers were stripped or cut has `sections` empty, which is no error; is_cut tells the latter.
    """

    def __init__(self, data: memoryview) -> None:
        if len(data) < 52 or bytes(data[:4]) != b"\x7fELF" or data[5] != 1 or data[4] not in (1, 2):
            raise BadElf("not a little-endian ELF file")
        self.data = data
        self.is_64 = data[4] == 2
        self.machine = self._unpack("<H", 18)[0]
        self.sections: tuple[Section, ...] = tuple(self._read_sections())
        segments = tuple(self._read_segments())
        self.first_load_vaddr = next((vaddr for kind, _, _, vaddr in segments if kind == PT_LOAD), 0)
        self.build_id = self._read_build_id([(o, n) for kind, o, n, _ in segments if kind == PT_NOTE])
        self.is_cut = self._ends_early([o + n for _, o, n, _ in segments])

    def find(self, name: str) -> Section | None:
        """The first section of that name that has bytes in this file (not SHT_NOBITS)."""
        return next((s for s in self.sections if s.name == name and s.type != SHT_NOBITS and s.size), None)

    def content(self, section: Section) -> memoryview:
        """The section's bytes as they lie in the file; cut where the file ends."""
        if section.type == SHT_NOBITS:
            return self.data[:0]
        return self.data[section.offset : section.offset + section.size]

    def _unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        try:
            return struct.unpack_from(layout, self.data, offset)
        except struct.error as error:
            raise BadElf("headers lie outside the file") from error

    def _read_sections(self) -> Iterator[Section]:
        table = self._unpack("<Q", 40)[0] if self.is_64 else self._unpack("<I", 32)[0]
        entry_size, count, names_index = self._unpack("<HHH", 58 if self.is_64 else 46)
        layout = "<IIQQQQI" if self.is_64 else "<IIIIIII"
        if not table or entry_size < struct.calcsize(layout) or table >= len(self.data):
            return
        count = min(count, MAX_SECTIONS, (len(self.data) - table) // entry_size)
        headers = [struct.unpack_from(layout, self.data, table + i * entry_size) for i in range(count)]
        names = memoryview(b"")
        if names_index < len(headers) and headers[names_index][1] != SHT_NOBITS:
            offset, size = headers[names_index][4:6]
            names = self.data[offset : offset + size]
        for name, kind, flags, address, offset, size, link in headers:
            yield Section(text_at(names, name, MAX_SECTION_NAME), kind, flags, address, offset, size, link)

    def _read_segments(self) -> Iterator[tuple[int, int, int, int]]:
        """(p_type, p_offset, p_filesz, p_vaddr) of each program header."""
        table = self._unpack("<Q", 32)[0] if self.is_64 else self._unpack("<I", 28)[0]
        entry_size, count = self._unpack("<HH", 54 if self.is_64 else 42)
        for i in range(min(count, MAX_SEGMENTS)):
            at = table + i * entry_size
            if at + (56 if self.is_64 else 32) > len(self.data):
                return
            if self.is_64:
                kind, _, offset, vaddr, _, size = self._unpack("<IIQQQQ", at)
            else:
                kind, offset, vaddr, _, size = self._unpack("<IIIII", at)
            yield kind, offset, size, vaddr

    def _ends_early(self, segment_ends: list[int]) -> bool:
        """Whether headers name bytes that lie behind the end of the file."""
        table = self._unpack("<Q", 40)[0] if self.is_64 else self._unpack("<I", 32)[0]
        entry_size, count = self._unpack("<HH", 58 if self.is_64 else 46)
        ends = [s.offset + s.size for s in self.sections if s.type != SHT_NOBITS]
        return max([*segment_ends, *ends, table + entry_size * count if table else 0]) > len(self.data)

    def _read_build_id(self, note_segments: list[tuple[int, int]]) -> str:
        ranges = [(s.offset, s.size) for s in self.sections if s.type == SHT_NOTE] + note_segments
        for offset, size in ranges[:MAX_NOTE_RANGES]:
            for kind, owner, content in iterate_notes(self.data[offset : offset + size]):
                if kind == NT_GNU_BUILD_ID and owner == b"GNU\0" and len(content) <= MAX_BUILD_ID_BYTES:
                    return content.hex()
        return ""


def iterate_notes(data: memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    """(type, owner, content) of each note (gABI "Note Section"; 4-byte alignment as all GNU tools write)."""
    at = 0
    for _ in range(MAX_NOTES):
        if at + 12 > len(data):
            return
        owner_size, size, kind = struct.unpack_from("<III", data, at)
        owner_at = at + 12
        content_at = owner_at + (owner_size + 3 & ~3)
        if content_at + size > len(data):
            return
        yield kind, bytes(data[owner_at : owner_at + owner_size]), bytes(data[content_at : content_at + size])
        at = content_at + (size + 3 & ~3)


def text_at(strings: memoryview, offset: int, limit: int = 65_536) -> str:
    """The NUL-terminated text at `offset` of a string table; "" outside of it."""
    raw = bytes(strings[offset : offset + 128])
    end = raw.find(b"\0")
    if end < 0 and len(raw) == 128:
        raw = bytes(strings[offset : offset + limit])
        end = raw.find(b"\0")
    return (raw if end < 0 else raw[:end]).decode("utf-8", "replace")
