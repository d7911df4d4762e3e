"""ELF files as the dynamic linker and the kernel read them: segments, dynamic section, exported symbols.

A table that leaves the file is an error, other than in unwind/elf_headers.py.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from elftools.elf.enums import ENUM_D_TAG
from numpy.typing import NDArray

from memleak_android.host.errors import TargetError
from memleak_android.unwind.elf_headers import (
    PF_X,
    PT_DYNAMIC,
    PT_GNU_PROPERTY,
    PT_INTERP,
    PT_LOAD,
    SECTION_BYTES_MAX,
    SHT_SYMTAB,
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_OBJECT,
    ElfSections,
    Segment,
    has_name,
)
from memleak_android.unwind.errors import BadElfError
from memleak_android.unwind.file_reading import contents, opened

# System V gABI, "Dynamic Section".
_TAGS: dict[str, int] = ENUM_D_TAG
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ = (
    _TAGS[f"DT_{name}"] for name in ("HASH", "STRTAB", "SYMTAB", "STRSZ")
)
DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_JMPREL = (
    _TAGS[f"DT_{name}"] for name in ("PLTRELSZ", "RELA", "RELASZ", "JMPREL")
)
DT_SONAME, DT_DEBUG = _TAGS["DT_SONAME"], _TAGS["DT_DEBUG"]
DT_SYMBOLIC, DT_FLAGS = _TAGS["DT_SYMBOLIC"], _TAGS["DT_FLAGS"]
DF_SYMBOLIC = 2
DT_GNU_HASH, DT_VERSYM, DT_VERDEF = _TAGS["DT_GNU_HASH"], _TAGS["DT_VERSYM"], _TAGS["DT_VERDEF"]

# System V gABI, chapter 5.
RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_DYNAMIC_ENTRIES_MAX = 4096
_VERSIONS_MAX = 4096


@dataclass(frozen=True, slots=True)
class FunctionSymbol:
    """A defined function.

    is_default: not a hidden old version (name@VERSION).
    is_indirect: STT_GNU_IFUNC, vaddr is that of the resolver.
    version: the hash of the version's name, 0 = none.
    """

    name: str
    vaddr: int
    size: int
    is_default: bool
    is_indirect: bool
    version: int = 0

    def answers(self, version: int) -> bool:
        """Whether the loader binds a reference to this version (0 = to none) to it (glibc, elf/dl-lookup.c: check_match())."""
        return self.version == version if version and self.version else self.is_default


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """One version of a file, by stat(2) of its open descriptor. Two paths to it give the same."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Self:
        status = os.fstat(descriptor)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class ElfFile(ElfSections):
    """A little-endian ELF file. Raises TargetError, or OSError when it cannot be opened.

    data: the file's bytes, if the caller has them.
    identity: of the file that was read; None: of `data`.
    """

    identity: FileIdentity | None = None

    def __init__(self, path: str | os.PathLike[str], data: memoryview | None = None) -> None:
        name = os.fspath(path)
        try:
            if data is None:
                data, self.identity = _read(name)
            super().__init__(data, name)
            self.check_segments()
        except BadElfError as error:
            raise TargetError(f"{name} cannot be read as an ELF file: {error.reason}") from None

    def _bad(self, reason: str) -> TargetError:
        return TargetError(f"{self.path} cannot be read as an ELF file: {reason}")

    def slice(self, offset: int, size: int) -> bytes:
        """`size` bytes of the file, at most SECTION_BYTES_MAX: a sparse file has any size, and headers are anybody's."""
        if size > SECTION_BYTES_MAX:
            raise self._bad(f"it has a table of {size:,} bytes")
        try:
            return self.view(offset, size).tobytes()
        except MemoryError:
            raise self._bad(f"{size:,} bytes are more than this machine's free memory") from None

    def bytes_from(self, offset: int, limit: int) -> bytes:
        """`limit` bytes of the file, fewer at its end."""
        return bytes(self.data[offset : offset + limit])

    def view(self, offset: int, size: int) -> NDArray[np.uint8]:
        """The same without a copy."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise self._bad(f"{size} bytes at offset {offset:#x} are outside of it")
        return np.frombuffer(self.data, dtype=np.uint8, count=size, offset=offset)

    def file_offset(self, vaddr: int) -> int | None:
        """The file offset of the byte at vaddr; None when no segment loads it from there."""
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

    def _segment(self, kind: int) -> Segment | None:
        return next((segment for segment in self.segments if segment.type == kind), None)

    @cached_property
    def interpreter(self) -> str:
        """PT_INTERP; "" for a static file or a library."""
        segment = self._segment(PT_INTERP)
        if segment is None:
            return ""
        return os.fsdecode(self.slice(segment.file_offset, min(segment.file_bytes, 4096)).split(b"\0")[0])

    @cached_property
    def dynamic(self) -> dict[int, list[int]]:
        """Values of the dynamic section by tag, in their order; empty for a static file."""
        found: dict[int, list[int]] = {}
        segment = self._segment(PT_DYNAMIC)
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
    def soname(self) -> str:
        return self._dynamic_string(self.dynamic[DT_SONAME][0]) if DT_SONAME in self.dynamic else ""

    @cached_property
    def is_symbolic(self) -> bool:
        """Whether its references are bound to its own definitions first (ld -Bsymbolic)."""
        flags = self.dynamic.get(DT_FLAGS, [0])[0]
        return DT_SYMBOLIC in self.dynamic or bool(flags & DF_SYMBOLIC)

    def dynamic_symbols(self) -> tuple[NDArray[np.void], bytes] | None:
        """The symbols and their string table."""
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
        """Hash by index of each version that the file defines (Elf_Verdef: vd_ndx, vd_hash, vd_next; gABI, symbol versioning)."""
        found: dict[int, int] = {}
        at = self._dynamic_offset(DT_VERDEF) if DT_VERDEF in self.dynamic else 0
        for _ in range(_VERSIONS_MAX):
            if not 0 < at <= len(self.data) - 20:
                break
            _, _, number, _, name_hash, _, further = struct.unpack("<4H3I", self.slice(at, 20))
            found.setdefault(number & 0x7FFF, name_hash)
            at += further or len(self.data)
        return found

    def imports(self, name: str) -> bool:
        """Whether the file refers to a function of this name in another object."""
        symbols = self.dynamic_symbols()
        if symbols is None:
            return False
        table, strings = symbols
        return bool((has_name(table, strings, name.encode()) & (table["section"] == 0)).any())

    def dynamic_data(self, name: str) -> tuple[int, int] | None:
        """vaddr and size of a variable of this name that the file exports."""
        symbols = self.dynamic_symbols()
        if symbols is None:
            return None
        table, strings = symbols
        is_named = has_name(table, strings, name.encode())
        found = table[is_named & (table["info"] & 0xF == STT_OBJECT) & (table["section"] != 0)]
        return (int(found[0]["value"]), int(found[0]["size"])) if len(found) else None

    @cached_property
    def gnu_features(self) -> int:
        """GNU_PROPERTY_AARCH64_FEATURE_1_AND or GNU_PROPERTY_X86_FEATURE_1_AND of its PT_GNU_PROPERTY, else 0.

        Linux include/uapi/linux/elf.h; the psABIs' "Program Property".
        """
        segment = self._segment(PT_GNU_PROPERTY)
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

    def relocations(self) -> Iterator[NDArray[np.void]]:
        """Of a 64-bit file: the rows (RELA) of each table with addends, first those of the PLT's slots."""
        for table_tag, size_tag in ((DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)):
            sizes = self.dynamic.get(size_tag, ())
            for address, n_bytes in zip(self.dynamic.get(table_tag, ()), sizes, strict=False):
                offset = self.file_offset(address)
                if offset is not None:
                    yield np.frombuffer(self.slice(offset, n_bytes - n_bytes % RELA.itemsize), RELA)

    def dynamic_symbol_name(self, index: int) -> str:
        at = self._dynamic_offset(DT_SYMTAB) + index * self.symbol_layout.itemsize
        return self._dynamic_string(int(self._symbols(at, 1)[0]["name"]))

    def static_functions(self, names: set[str]) -> list[FunctionSymbol]:
        """The same from .symtab, which a stripped file does not have."""
        for section, symbols, strings in self.symbol_tables():
            if section.type == SHT_SYMTAB:
                return _select(symbols, strings, np.zeros(len(symbols), "<u2"), names, {})
        return []

    def _symbols(self, offset: int, count: int) -> NDArray[np.void]:
        return np.frombuffer(self.slice(offset, count * self.symbol_layout.itemsize), self.symbol_layout)

    def _dynamic_offset(self, tag: int) -> int:
        vaddr = self.dynamic[tag][0]
        offset = self.file_offset(vaddr)
        if offset is None:
            raise self._bad(f"dynamic entry {tag:#x} points to {vaddr:#x}, which is not in it")
        return offset

    def _dynamic_string(self, offset: int) -> str:
        if DT_STRTAB not in self.dynamic:
            raise self._bad("no dynamic string table")
        start = self._dynamic_offset(DT_STRTAB) + offset
        text, end, _ = self.bytes_from(start, 4096).partition(b"\0")
        if not end:
            raise self._bad(f"the dynamic string at {offset:#x} does not end")
        return os.fsdecode(text)

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
        rest = self.bytes_from(chain, 4 << 16)
        ends = np.flatnonzero(np.frombuffer(rest[: len(rest) & ~3], dtype="<u4") & 1)
        if not len(ends):
            raise self._bad("a chain of .gnu.hash does not end")
        return index + int(ends[0]) + 1


def _read(path: str) -> tuple[memoryview, FileIdentity]:
    with opened(path) as file:
        identity = FileIdentity.of(file.fileno())
        try:
            return contents(file.fileno(), path), identity
        except OSError as error:
            raise BadElfError(path, str(error.strerror)) from None


def _select(
    table: NDArray[np.void],
    strings: bytes | memoryview,
    numbers: NDArray[np.uint16],
    names: Iterable[str],
    versions: dict[int, int],
) -> list[FunctionSymbol]:
    """The functions of these names. Searching the string table first saves a loop over symbols."""
    kind = table["info"] & 0xF
    usable = ((kind == STT_FUNC) | (kind == STT_GNU_IFUNC)) & (table["section"] != 0) & (table["value"] != 0)
    found = []
    for name in names:
        for i in np.flatnonzero(usable & has_name(table, strings, name.encode())).tolist():
            row, number = table[i], int(numbers[i])
            version = versions.get(number & 0x7FFF, 0) if number & 0x7FFF > 1 else 0
            is_default, is_indirect = not number & 0x8000, bool(kind[i] == STT_GNU_IFUNC)
            vaddr, size = int(row["value"]), int(row["size"])
            found.append(FunctionSymbol(name, vaddr, size, is_default, is_indirect, version))
    return sorted(found, key=lambda symbol: (symbol.name, not symbol.is_default, symbol.vaddr))
