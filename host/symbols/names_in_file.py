"""Function names from an ELF file's own symbol tables, and the library's name.

Other than symbolizer.py this opens no other file and prefers no alias. The first function in the first table that holds an
address names it, as in Android's unwinder (libunwindstack, Symbols.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.dynamic import DT_SONAME, DT_STRSZ, DT_STRTAB, ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.symbols.demangle import demangle
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.elf_headers import EM_ARM, STT_FUNC, ElfSections, text_at
from memleak_android.unwind.elf_image import ElfImage

_CLOSING = re.compile(r"(?<!operator>)(?<=>)(?=>)")  # Android's demangler writes > > where ours writes >>
_NESTING_MAX = 64
_SHOWN_MAX = 1 << 16  # characters; a mangled name can expand to two million
_SONAME_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class FunctionOffset:
    """function: demangled. offset: bytes from its start."""

    function: str
    offset: int


class FunctionNames:
    """The functions of one ELF file: those of its symbol tables in their order, then those in .gnu_debugdata.

    The latter is unpacked only if the file's own tables do not hold an address.
    """

    def __init__(self, elf: ElfImage) -> None:
        self._elf = elf

    def find(self, vaddr: int) -> FunctionOffset | None:
        """The function at a vaddr (of Thumb code with or without its bit 0)."""
        return _find(self._tables, vaddr) or _find(self._packed_tables, vaddr)

    @cached_property
    def _tables(self) -> list[_Table]:
        return _tables_of(self._elf)

    @cached_property
    def _packed_tables(self) -> list[_Table]:
        return _tables_of(self._elf.mini_debuginfo)


def _find(tables: list[_Table], vaddr: int) -> FunctionOffset | None:
    return next((found for table in tables if (found := table.find(vaddr)) is not None), None)


@dataclass(frozen=True, slots=True)
class _Table:
    """Functions sorted by start. mask: bits of a symbol's value that are its address."""

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    name: NDArray[np.int64]
    strings: memoryview
    mask: int

    def find(self, vaddr: int) -> FunctionOffset | None:
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
                return FunctionOffset(_CLOSING.sub(" ", shown), vaddr - int(self.start[i]))
        return None


def _tables_of(elf: ElfSections | None) -> list[_Table]:
    if elf is None:
        return []
    mask = (1 << 64) - 2 if elf.machine == EM_ARM else (1 << 64) - 1
    found = []
    for _, symbols, strings in elf.symbol_tables():
        symbols = symbols[
            (symbols["info"] & 15 == STT_FUNC) & (symbols["section"] != 0) & (symbols["size"] != 0)
        ]
        start = symbols["value"].astype(np.uint64) & np.uint64(mask)
        end = start + symbols["size"].astype(np.uint64)
        order = np.argsort(start, kind="stable")
        name = symbols["name"].astype(np.int64)
        found.append(_Table(start[order], end[order], name[order], strings, mask))
    return found


def soname(module: Module) -> str:
    """DT_SONAME, found by program headers only; "" where there is none."""
    try:
        tags = ElfFile("", module.data).dynamic
    except TargetError:
        return ""
    if DT_SONAME not in tags or DT_STRTAB not in tags:
        return ""
    at, size = tags[DT_SONAME][0], tags.get(DT_STRSZ, [_SONAME_BYTES_MAX])[0]
    raw = module.bytes_at(tags[DT_STRTAB][0] + at, max(min(size - at, _SONAME_BYTES_MAX), 0))
    return raw.split(b"\0")[0].decode("utf-8", "replace")
