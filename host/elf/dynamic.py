"""What the dynamic linker and the kernel read of an ELF file: header, segments, dynamic section, symbols.

Only what stands in the file and inside its bounds is read; everything else is a BadElfError. (The unwinder's
own view, sections and call frame information, is unwind/cfi/module.py.)
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import TargetError

# System V gABI, "ELF Header", "Program Header", "Dynamic Section", "Symbol Table".
ELFCLASS32, ELFCLASS64 = 1, 2
ET_EXEC, ET_DYN = 2, 3
EM_386, EM_ARM, EM_X86_64, EM_AARCH64 = 3, 40, 62, 183
MACHINE_NAMES = {EM_386: "i386", EM_ARM: "arm32", EM_X86_64: "x86_64", EM_AARCH64: "arm64"}
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_GNU_PROPERTY = 1, 2, 3, 0x6474E553
PF_X = 1
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ = 1, 4, 5, 6, 10
DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_JMPREL = 2, 7, 8, 23
DT_SONAME, DT_RPATH, DT_DEBUG, DT_RUNPATH = 14, 15, 21, 29
DT_FLAGS_1, DT_GNU_HASH, DT_VERSYM, DT_VERDEF = 0x6FFFFFFB, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC
DF_1_NODEFLIB = 0x800
SHT_SYMTAB = 2
STT_OBJECT, STT_FUNC, STT_GNU_IFUNC = 1, 2, 10

_EHDR = {ELFCLASS32: "<HHIIIIIHHHHHH", ELFCLASS64: "<HHIQQQIHHHHHH"}
_PHDR = {ELFCLASS32: "<IIIIIIII", ELFCLASS64: "<IIQQQQQQ"}
_SHDR = {ELFCLASS32: "<IIIIIIIIII", ELFCLASS64: "<IIQQQQIIQQ"}
_SYMBOL_32 = np.dtype(
    [("name", "<u4"), ("value", "<u4"), ("size", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")]
)
_SYMBOL_64 = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_DYNAMIC_ENTRIES_MAX = 4096
_VERSIONS_MAX = 4096


class BadElfError(TargetError):
    """A file that is no ELF file, or whose tables leave it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read as an ELF file: {reason}")


@dataclass(frozen=True, slots=True)
class Segment:
    type: int
    flags: int
    file_offset: int
    vaddr: int
    file_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class FunctionSymbol:
    """A defined function. is_default: not a hidden old version (name@VERSION). version: its name's hash, 0 = none."""

    name: str
    vaddr: int
    size: int
    is_default: bool
    is_indirect: bool  # STT_GNU_IFUNC: vaddr is that of the resolver
    version: int = 0

    def answers(self, version: int) -> bool:
        """Whether the loader binds who asks for this version (0 = for none) to it (glibc, elf/dl-lookup.c: check_match())."""
        return self.version == version if version and self.version else self.is_default


class ElfFile:
    """A little-endian ELF file, mapped read-only. Raises BadElfError, or OSError when it cannot be opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < 52:
                raise BadElfError(self.path, "too short")
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self.data[:4] != b"\x7fELF":
            raise BadElfError(self.path, "no ELF magic")
        self.elf_class, byte_order = self.data[4], self.data[5]
        if self.elf_class not in _EHDR or byte_order != 1:
            raise BadElfError(self.path, f"class {self.elf_class}, byte order {byte_order}")
        header = struct.unpack(_EHDR[self.elf_class], self.slice(16, struct.calcsize(_EHDR[self.elf_class])))
        self.type, self.machine = header[0], header[1]
        self.entry_vaddr, self._phoff, self._shoff = header[3:6]
        self._phentsize, self._phnum, self._shentsize, self._shnum = header[8:12]
        self.segments = tuple(self._read_segments())

    @property
    def is_64_bit(self) -> bool:
        return bool(self.elf_class == ELFCLASS64)

    def slice(self, offset: int, size: int) -> bytes:
        """`size` bytes of the file."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise BadElfError(self.path, f"{size} bytes at offset {offset:#x} are outside of it")
        return self.data[offset : offset + size]

    def view(self, offset: int, size: int) -> NDArray[np.uint8]:
        """The same without a copy, as long as the array lives."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise BadElfError(self.path, f"{size} bytes at offset {offset:#x} are outside of it")
        return np.frombuffer(self.data, dtype=np.uint8, count=size, offset=offset)

    def file_offset(self, vaddr: int) -> int | None:
        """Where the byte at vaddr stands in the file; None when no segment loads it from there."""
        for segment in self.segments:
            if segment.type == PT_LOAD and segment.vaddr <= vaddr < segment.vaddr + segment.file_bytes:
                return vaddr - segment.vaddr + segment.file_offset
        return None

    def text_segment(self, file_offset: int) -> Segment | None:
        """The executable segment that holds the byte at file_offset."""
        for segment in self.segments:
            inside = segment.file_offset <= file_offset < segment.file_offset + segment.file_bytes
            if inside and segment.type == PT_LOAD and segment.flags & PF_X:
                return segment
        return None

    @cached_property
    def interpreter(self) -> str:
        """PT_INTERP; "" for a static file or a library."""
        for segment in self.segments:
            if segment.type == PT_INTERP:
                text = self.slice(segment.file_offset, min(segment.file_bytes, 4096))
                return os.fsdecode(text.split(b"\0")[0])
        return ""

    @cached_property
    def dynamic(self) -> dict[int, list[int]]:
        """Values of the dynamic section by tag, in their order; empty for a static file."""
        found: dict[int, list[int]] = {}
        segment = next((s for s in self.segments if s.type == PT_DYNAMIC), None)
        if segment is None:
            return found
        word = 8 if self.is_64_bit else 4
        count = min(segment.file_bytes // (2 * word), _DYNAMIC_ENTRIES_MAX)
        table = np.frombuffer(self.slice(segment.file_offset, count * 2 * word), dtype=f"<u{word}")
        for tag, value in table.reshape(-1, 2).tolist():
            if tag == 0:
                break
            found.setdefault(tag, []).append(value)
        return found

    @cached_property
    def needed(self) -> tuple[str, ...]:
        return tuple(self._dynamic_string(value) for value in self.dynamic.get(DT_NEEDED, ()))

    @cached_property
    def soname(self) -> str:
        return self._first_dynamic_string(DT_SONAME)

    @cached_property
    def rpath(self) -> str:
        return self._first_dynamic_string(DT_RPATH)

    @cached_property
    def runpath(self) -> str:
        return self._first_dynamic_string(DT_RUNPATH)

    @property
    def ignores_default_directories(self) -> bool:
        return bool(self.dynamic.get(DT_FLAGS_1, [0])[0] & DF_1_NODEFLIB)

    def dynamic_symbols(self) -> tuple[NDArray[np.void], bytes] | None:
        """The table and its names: struct Elf64_Sym or Elf32_Sym as name, info, section, value and size."""
        if DT_SYMTAB not in self.dynamic or DT_STRTAB not in self.dynamic:
            return None
        table = self._symbols(self._dynamic_offset(DT_SYMTAB), self._dynamic_symbol_count())
        return table, self.slice(self._dynamic_offset(DT_STRTAB), self.dynamic.get(DT_STRSZ, [0])[0])

    def dynamic_functions(self, names: set[str]) -> list[FunctionSymbol]:
        """Functions of these names that the file exports, all versions of each."""
        symbols = self.dynamic_symbols()
        if symbols is None:
            return []
        table, strings = symbols
        count = len(table)
        numbers = np.zeros(count, dtype="<u2")
        if DT_VERSYM in self.dynamic:
            numbers = np.frombuffer(self.slice(self._dynamic_offset(DT_VERSYM), 2 * count), "<u2")
        return _select(table, strings, numbers, names, self._version_hashes)

    @cached_property
    def _version_hashes(self) -> dict[int, int]:
        """By the number of each version that it defines (Elf_Verdef: vd_ndx, vd_hash, vd_next; gABI, symbol versioning)."""
        found: dict[int, int] = {}
        at = self._dynamic_offset(DT_VERDEF) if DT_VERDEF in self.dynamic else 0
        for _ in range(_VERSIONS_MAX):
            if not 0 < at <= len(self.data) - 20:
                break
            _, _, number, _, name_hash, _, further = struct.unpack("<4H3I", self.slice(at, 20))
            found.setdefault(number & 0x7FFF, name_hash)
            at += further or len(self.data)
        return found

    def dynamic_data(self, name: str) -> tuple[int, int] | None:
        """vaddr and size of a variable of this name that the file exports."""
        symbols = self.dynamic_symbols()
        if symbols is None:
            return None
        table, strings = symbols
        is_named = np.isin(table["name"], _occurrences(strings, name.encode() + b"\0"))
        found = table[is_named & (table["info"] & 0xF == STT_OBJECT) & (table["section"] != 0)]
        return (int(found[0]["value"]), int(found[0]["size"])) if len(found) else None

    @cached_property
    def gnu_features(self) -> int:
        """GNU_PROPERTY_AARCH64_FEATURE_1_AND or GNU_PROPERTY_X86_FEATURE_1_AND of its PT_GNU_PROPERTY, else 0.

        Linux include/uapi/linux/elf.h; the psABIs' "Program Property".
        """
        segment = next((one for one in self.segments if one.type == PT_GNU_PROPERTY), None)
        if segment is None:
            return 0
        note = self.slice(segment.file_offset, min(segment.file_bytes, 4096))
        at = 16  # behind the note's header and its name, "GNU"
        while at + 12 <= len(note):
            kind, size, value = struct.unpack_from("<III", note, at)
            if kind in (0xC0000000, 0xC0000002) and size == 4:
                return int(value)
            at += 8 + size + -size % 8
        return 0

    def dynamic_symbol_name(self, index: int) -> str:
        at = self._dynamic_offset(DT_SYMTAB) + index * self._symbol_type.itemsize
        return self._dynamic_string(int(self._symbols(at, 1)[0]["name"]))

    def static_functions(self, names: set[str]) -> list[FunctionSymbol]:
        """The same from .symtab, which a stripped file has not."""
        sections = self._sections()
        symtab = next((one for one in sections if one.type == SHT_SYMTAB), None)
        if symtab is None:
            return []
        if symtab.link >= len(sections):
            raise BadElfError(self.path, f"the string table of .symtab is section {symtab.link}")
        count = symtab.size // self._symbol_type.itemsize
        strings = self.slice(sections[symtab.link].offset, sections[symtab.link].size)
        return _select(self._symbols(symtab.offset, count), strings, np.zeros(count, "<u2"), names, {})

    @property
    def _symbol_type(self) -> np.dtype[np.void]:
        return _SYMBOL_64 if self.is_64_bit else _SYMBOL_32

    def _symbols(self, offset: int, count: int) -> NDArray[np.void]:
        return np.frombuffer(self.slice(offset, count * self._symbol_type.itemsize), dtype=self._symbol_type)

    def _read_segments(self) -> Iterator[Segment]:
        layout = _PHDR[self.elf_class]
        if self._phnum and self._phentsize != struct.calcsize(layout):
            raise BadElfError(self.path, f"program headers of {self._phentsize} bytes")
        for raw in struct.iter_unpack(layout, self.slice(self._phoff, self._phnum * struct.calcsize(layout))):
            if self.is_64_bit:
                type_, flags, offset, vaddr, _, file_bytes, memory_bytes, _ = raw
            else:
                type_, offset, vaddr, _, file_bytes, memory_bytes, flags, _ = raw
            yield Segment(type_, flags, offset, vaddr, file_bytes, memory_bytes)

    def _sections(self) -> list[_Section]:
        layout = _SHDR[self.elf_class]
        if not self._shnum or self._shentsize != struct.calcsize(layout):
            return []
        raw = self.slice(self._shoff, self._shnum * self._shentsize)
        return [_Section(one[1], one[4], one[5], one[6]) for one in struct.iter_unpack(layout, raw)]

    def _dynamic_offset(self, tag: int) -> int:
        vaddr = self.dynamic[tag][0]
        offset = self.file_offset(vaddr)
        if offset is None:
            raise BadElfError(self.path, f"dynamic entry {tag:#x} points to {vaddr:#x}, which is not in it")
        return offset

    def _dynamic_string(self, offset: int) -> str:
        if DT_STRTAB not in self.dynamic:
            raise BadElfError(self.path, "no dynamic string table")
        start = self._dynamic_offset(DT_STRTAB) + offset
        end = self.data.find(b"\0", start, start + 4096) if start < len(self.data) else -1
        if end < 0:
            raise BadElfError(self.path, f"the dynamic string at {offset:#x} does not end")
        return os.fsdecode(self.data[start:end])

    def _first_dynamic_string(self, tag: int) -> str:
        return self._dynamic_string(self.dynamic[tag][0]) if tag in self.dynamic else ""

    def _dynamic_symbol_count(self) -> int:
        if DT_HASH in self.dynamic:
            return int(struct.unpack("<II", self.slice(self._dynamic_offset(DT_HASH), 8))[1])
        if DT_GNU_HASH in self.dynamic:
            return self._gnu_hash_symbol_count(self._dynamic_offset(DT_GNU_HASH))
        return 0

    def _gnu_hash_symbol_count(self, offset: int) -> int:
        """The highest index of any bucket's chain, whose last entry has bit 0 set, plus one."""
        n_buckets, first, bloom_words, _ = struct.unpack("<IIII", self.slice(offset, 16))
        at = offset + 16 + bloom_words * (8 if self.is_64_bit else 4)
        buckets = np.frombuffer(self.slice(at, 4 * n_buckets), dtype="<u4")
        index = int(buckets.max(initial=0))
        if index < first:
            return int(first)
        chain = at + 4 * n_buckets + 4 * (index - first)
        rest = self.data[chain : chain + (4 << 16)] if chain < len(self.data) else b""
        ends = np.flatnonzero(np.frombuffer(rest[: len(rest) & ~3], dtype="<u4") & 1)
        if not len(ends):
            raise BadElfError(self.path, "a chain of .gnu.hash does not end")
        return index + int(ends[0]) + 1


@dataclass(frozen=True, slots=True)
class _Section:
    type: int
    offset: int
    size: int
    link: int


def _select(
    table: NDArray[np.void],
    strings: bytes,
    numbers: NDArray[np.uint16],
    names: Iterable[str],
    versions: dict[int, int],
) -> list[FunctionSymbol]:
    """Finds the names in the string table first: the cost does not grow with a loop over symbols."""
    kind = table["info"] & 0xF
    usable = ((kind == STT_FUNC) | (kind == STT_GNU_IFUNC)) & (table["section"] != 0) & (table["value"] != 0)
    found = []
    for name in names:
        positions = _occurrences(strings, name.encode() + b"\0")
        for i in np.flatnonzero(usable & np.isin(table["name"], positions)).tolist():
            row, number = table[i], int(numbers[i])
            version = versions.get(number & 0x7FFF, 0) if number & 0x7FFF > 1 else 0
            is_default, is_indirect = not number & 0x8000, bool(kind[i] == STT_GNU_IFUNC)
            vaddr, size = int(row["value"]), int(row["size"])
            found.append(FunctionSymbol(name, vaddr, size, is_default, is_indirect, version))
    return sorted(found, key=lambda symbol: (symbol.name, not symbol.is_default, symbol.vaddr))


def _occurrences(strings: bytes, needle: bytes) -> list[int]:
    """Every position: linkers let one name be the tail of another."""
    found = []
    at = strings.find(needle)
    while at >= 0:
        found.append(at)
        at = strings.find(needle, at + 1)
    return found
