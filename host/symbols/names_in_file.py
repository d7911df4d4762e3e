"""What an ELF image calls its code: function names by the files' own tables, and the library's name.

Unlike symbols.py this looks into no other file and prefers no alias: the first function in the first table that
holds an address names it, as Android's own unwinder has it (libunwindstack, Symbols.cpp).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.sections import (
    EM_ARM,
    SHT_DYNSYM,
    SHT_SYMTAB,
    BadElf,
    ElfSections,
    text_at,
)
from memleak_android.host.symbols.debug_files import unpack_debugdata
from memleak_android.host.symbols.demangle import demangle
from memleak_android.host.symbols.symbol_table import STT_FUNC, SYMBOL_32, SYMBOL_64
from memleak_android.unwind.cfi.module import Module

_CLOSING = re.compile(r"(?<!operator>)(?<=>)(?=>)")  # Android's demangler writes > > where ours writes >>
_TABLES_MAX = 4
_NESTING_MAX = 64
_SHOWN_MAX = 1 << 16  # characters; 130 made on purpose unfold to half a million
_DYNAMIC_ENTRIES_MAX = 4096
_SONAME_BYTES_MAX = 4096
_PT_DYNAMIC, _DT_NULL, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 2, 0, 5, 10, 14


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """function: demangled. offset: bytes from its start."""

    function: str
    offset: int


class FunctionNames:
    """The functions of one ELF file: of its symbol tables in their order, then of those in .gnu_debugdata.

    debugdata: gives what is packed there, where somebody has unpacked it already; of an odex file that is most of
    the work.
    """

    def __init__(self, data: memoryview, debugdata: Callable[[], memoryview | None] | None = None) -> None:
        self._own: ElfSections | None = None
        self._debugdata = debugdata
        with suppress(BadElf):
            self._own = ElfSections(data)

    @classmethod
    def of(cls, module: Module) -> FunctionNames:
        """Those of a file that the unwinder has open."""
        return cls(module.image.data, lambda: module.mini_debuginfo.data if module.mini_debuginfo else None)

    def find(self, vaddr: int) -> NamedPlace | None:
        """The function at a vaddr (of Thumb code with or without its bit 0)."""
        return _find(self._tables, vaddr) or _find(self._packed_tables, vaddr)

    @cached_property
    def _tables(self) -> list[_Table]:
        return _tables_of(self._own) if self._own is not None else []

    @cached_property
    def _packed_tables(self) -> list[_Table]:
        """Unpacked when the file's own tables did not suffice."""
        if self._own is None:
            return []
        if self._debugdata is None:
            packed = unpack_debugdata(self._own)
            return _tables_of(packed) if packed is not None else []
        data = self._debugdata()
        try:
            return _tables_of(ElfSections(data)) if data is not None else []
        except BadElf:
            return []


def _find(tables: list[_Table], vaddr: int) -> NamedPlace | None:
    return next((found for table in tables if (found := table.find(vaddr)) is not None), None)


@dataclass(frozen=True, slots=True)
class _Table:
    """Sorted by start. mask: bits of a value that are its address."""

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    name: NDArray[np.int64]
    strings: memoryview
    mask: int

    def find(self, vaddr: int) -> NamedPlace | None:
        vaddr &= self.mask
        last = int(np.searchsorted(self.start, np.uint64(vaddr), "right")) - 1
        for i in range(last, max(last - _NESTING_MAX, -1), -1):
            if vaddr < self.end[i]:
                # the first of several functions at one address
                i = max(int(np.searchsorted(self.start, self.start[i])), i - _NESTING_MAX)
                i += int(np.argmax(self.end[i : last + 1] > vaddr))
                name = text_at(self.strings, int(self.name[i]))
                shown = demangle(name)
                if len(shown) > _SHOWN_MAX:
                    shown = name
                return NamedPlace(_CLOSING.sub(" ", shown), vaddr - int(self.start[i]))
        return None


def _tables_of(elf: ElfSections) -> list[_Table]:
    mask = (1 << 64) - 2 if elf.machine == EM_ARM else (1 << 64) - 1
    layout = SYMBOL_64 if elf.is_64 else SYMBOL_32
    found = []
    for section in elf.sections:
        if section.type not in (SHT_SYMTAB, SHT_DYNSYM) or section.link >= len(elf.sections):
            continue
        content = elf.content(section)
        symbols = np.frombuffer(content, layout, len(content) // layout.itemsize)
        symbols = symbols[
            (symbols["info"] & 15 == STT_FUNC) & (symbols["shndx"] != 0) & (symbols["size"] != 0)
        ]
        start = symbols["value"].astype(np.uint64) & np.uint64(mask)
        end = start + symbols["size"].astype(np.uint64)
        order = np.argsort(start, kind="stable")
        name = symbols["name"].astype(np.int64)
        strings = memoryview(bytes(elf.content(elf.sections[section.link])))
        found.append(_Table(start[order], end[order], name[order], strings, mask))
        if len(found) == _TABLES_MAX:
            break
    return found


def soname(module: Module) -> str:
    """DT_SONAME (gABI, "Dynamic Section"), read by program headers only; "" where there is none."""
    entries = dict(_dynamic_entries(module.image.data, is_64=module.arch.word_bytes == 8))
    if _DT_SONAME not in entries or _DT_STRTAB not in entries:
        return ""
    at, size = entries[_DT_SONAME], entries.get(_DT_STRSZ, _SONAME_BYTES_MAX)
    raw = module.bytes_at(entries[_DT_STRTAB] + at, max(min(size - at, _SONAME_BYTES_MAX), 0))
    return raw.split(b"\0")[0].decode("utf-8", "replace")


def _dynamic_entries(data: memoryview, *, is_64: bool) -> list[tuple[int, int]]:
    """(tag, value), the first of a tag last: so that a dict of them keeps it."""
    header, entry = ("<IIQQQQ", "<qQ") if is_64 else ("<IIIII", "<iI")
    try:
        table = struct.unpack_from("<Q" if is_64 else "<I", data, 32 if is_64 else 28)[0]
        stride, count = struct.unpack_from("<HH", data, 54 if is_64 else 42)
        for i in range(count):
            kind, *rest = struct.unpack_from(header, data, table + i * stride)
            if kind == _PT_DYNAMIC:
                offset, size = (rest[1], rest[4]) if is_64 else (rest[0], rest[3])
                break
        else:
            return []
        found = []
        for i in range(min(size // struct.calcsize(entry), _DYNAMIC_ENTRIES_MAX)):
            tag, value = struct.unpack_from(entry, data, offset + i * struct.calcsize(entry))
            if tag == _DT_NULL:
                break
            found.append((tag, value))
        return found[::-1]
    except (struct.error, OverflowError):  # an offset of 63 bits and more
        return []
