"""Resolves module and vaddr to functions: name, offset, file, line, inlined functions included."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.cache_folder import cache_base
from memleak_android.host.profile.profile import SymbolClass
from memleak_android.host.symbols.debug_files import Content, DebugFileSearch, SymbolFile
from memleak_android.host.symbols.demangle import demangle_all
from memleak_android.host.symbols.line_table import LineTable, Location, load_line_table
from memleak_android.host.symbols.packages import PackageSearch
from memleak_android.host.symbols.symbol_table import Symbol, SymbolTable
from memleak_android.unwind.cfi.cache_sharing import Sharing
from memleak_android.unwind.elf_headers import ElfSections
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.errors import BadElfError


class SymbolModule(Protocol):
    """A module: its path as mapped, its build-id (hex, "" = none), the bytes of its file."""

    @property
    def path(self) -> str: ...

    @property
    def build_id(self) -> str: ...

    @property
    def data(self) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class ResolvedFrame:
    """One function at an address.

    offset: from its start to the resolved vaddr; 0 for an inlined function, -1 before a signal trampoline.
    """

    function: str  # demangled; "" = unknown
    offset: int
    file: str | None
    line: int | None
    inlined: bool


# Signal handlers return to these functions, but no call instruction precedes them, so a
# lookup at return address - 1 misses them (glibc sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c).
SIGNAL_TRAMPOLINES = frozenset({"__restore_rt", "__restore", "__kernel_rt_sigreturn", "__kernel_sigreturn"})

NAMELESS = (ResolvedFrame("", 0, None, None, False),)


def default_cache_dir() -> Path:
    """The folder of symcaches: $XDG_CACHE_HOME/memleak-android or ~/.cache/memleak-android."""
    return cache_base() / "memleak-android"


class Symbolizer:
    """Resolves addresses of many modules. A module's symbols are loaded at its first use.

    symbol_dirs: searched recursively for files by build-id.
    cache_dir: None = no cache on disk.
    sharing: of the cache.
    An unreadable file lowers the quality of names, but is not an error.
    """

    def __init__(
        self,
        symbol_dirs: Sequence[Path] = (),
        cache_dir: Path | None = None,
        search: DebugFileSearch | None = None,
        sharing: Sharing | None = None,
        packages: PackageSearch | None = None,
    ) -> None:
        self.packages = packages or PackageSearch()
        self._search = search or DebugFileSearch(symbol_dirs)
        self._cache_dir = cache_dir
        self._sharing = sharing
        self._notes: list[str] = []
        self._modules: dict[tuple[str, str | int], tuple[SymbolModule, _ModuleSymbols]] = {}

    def resolve(self, module: SymbolModule, vaddrs: NDArray[np.uint64]) -> list[tuple[ResolvedFrame, ...]]:
        """For each vaddr its functions, innermost inlined first; never empty.

        The caller has reduced return addresses by 1, so that they lie in the call.
        """
        unique, inverse = np.unique(np.asarray(vaddrs, np.uint64), return_inverse=True)
        chains = self._symbols_of(module).resolve(unique)
        return [chains[i] for i in inverse.tolist()]

    def symbol_class(self, module: SymbolModule) -> SymbolClass:
        return self._symbols_of(module).symbol_class

    @property
    def notes(self) -> tuple[str, ...]:
        """Files that were refused or lack lines, one sentence each."""
        return (*self._search.notes, *self._notes)

    def _symbols_of(self, module: SymbolModule) -> _ModuleSymbols:
        # Without a build-id only the object distinguishes two files of one path. It is kept, so its id stays unique.
        key = (module.path, module.build_id or id(module))
        if key not in self._modules:
            self._modules[key] = (module, self._load(module))
        return self._modules[key][1]

    def _load(self, module: SymbolModule) -> _ModuleSymbols:
        """A module whose tables need more memory than there is has no names; the session goes on."""
        try:
            return self._read(module)
        except MemoryError:
            return _ModuleSymbols(SymbolTable([]), None)

    def _read(self, module: SymbolModule) -> _ModuleSymbols:
        try:
            own: ElfSections | None = ElfSections(memoryview(module.data))
        except (BadElfError, OSError):
            own = None
        path = module.path.removesuffix(" (deleted)")
        files = self._search.find(path, module.build_id, own)
        packed = [unpacked for f in files if (unpacked := f.elf.unpack_debugdata()) is not None]
        best: SymbolFile | None = next((f for f in files if f.content is Content.DEBUG_INFO), None)
        lines = load_line_table(best, self._cache_dir, self._sharing) if best else None
        is_split = best is not None and _is_split(best.elf)
        if is_split:
            self._notes.append(
                f"{os.path.basename(path)}: its lines and inlined functions are in .dwo files or a .dwp,"
                " which are not read; build it without -gsplit-dwarf"
            )
        return _ModuleSymbols(SymbolTable([f.elf for f in files] + packed), lines, is_split)


def _is_split(elf: ElfSections) -> bool:
    """Whether units of .debug_info only name the .dwo files that describe them (DWARF 5 §7.3)."""
    if elf.find(".debug_addr") is None:
        return False
    try:
        return b".dwo\0" in ElfImage(elf.data, "").debug_section("str")
    except BadElfError:
        return False


class _ModuleSymbols:
    def __init__(self, table: SymbolTable, lines: LineTable | None, is_split: bool = False) -> None:
        self._table = table
        self._is_split = is_split
        self._lines = lines
        self._names: dict[str, str] = {}

    @property
    def symbol_class(self) -> SymbolClass:
        if self._lines is not None and not self._is_split:
            return SymbolClass.LINES
        return SymbolClass.NAMES if len(self._table) else SymbolClass.NONE

    def resolve(self, vaddrs: NDArray[np.uint64]) -> list[tuple[ResolvedFrame, ...]]:
        symbols = self._table.find(vaddrs)
        after = self._table.find(vaddrs + np.uint64(1))
        for i, (symbol, following) in enumerate(zip(symbols, after, strict=True)):
            if symbol is None and following is not None and following.name in SIGNAL_TRAMPOLINES:
                symbols[i] = following
        found = [self._lines.lookup(vaddr) if self._lines else [] for vaddr in vaddrs.tolist()]
        self._demangle(
            [symbol.name for symbol in symbols if symbol] + [one.name for chain in found for one in chain]
        )
        return [self._chain(*row) for row in zip(vaddrs.tolist(), symbols, found, strict=True)]

    def _chain(
        self, vaddr: int, symbol: Symbol | None, found: Sequence[Location]
    ) -> tuple[ResolvedFrame, ...]:
        if not found:
            if symbol is None:
                return NAMELESS
            return (ResolvedFrame(self._names[symbol.name], vaddr - symbol.vaddr, None, None, False),)
        *inlined, outer = found
        # The symbol table names the machine code: one name with and without debug information keeps a
        # site's id. DWARF's start is useless for a function in several pieces (.cold).
        name, start = (symbol.name, symbol.vaddr) if symbol else (outer.name, min(outer.vaddr, vaddr))
        last = ResolvedFrame(self._names[name], vaddr - start, outer.file, outer.line, False)
        return (*(ResolvedFrame(self._names[f.name], 0, f.file, f.line, True) for f in inlined), last)

    def _demangle(self, names: Sequence[str]) -> None:
        """All at once, which costs less than one by one."""
        new = [name for name in dict.fromkeys(names) if name not in self._names]
        self._names.update(zip(new, demangle_all(new), strict=True))
