"""All functions in the symbol tables of one ELF file, found by name, demangled name or glob."""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from memleak_android.host.errors import TargetError
from memleak_android.host.symbols.debug_files import DebugFileSearch, open_elf
from memleak_android.host.symbols.demangle import demangle_all
from memleak_android.host.tracers.functions.written_names import SPECIAL_NAMES, normal_name, written_names
from memleak_android.unwind.elf_headers import (
    SHF_COMPRESSED,
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_OBJECT,
    ElfSections,
    text_at,
)
from memleak_android.unwind.errors import BadElfError

_SYMBOLS_MAX = 4_000_000
_DEBUG_TEXT_MAX = 256 << 20
# Suffixes of a function's changed copy: GCC, clang with ThinLTO.
_CLONE = re.compile(r"(\.(constprop|isra|part|llvm|lto_priv)(\.\d+)?)+$")
_COLD = ".cold"  # GCC: the unlikely part of a function, not a function itself


@dataclass(frozen=True, slots=True)
class TableSymbol:
    """name: as in the file, without its version. size: in bytes, 0 = unknown. kind: STT_ of the gABI."""

    name: str
    vaddr: int
    size: int
    kind: int


class FunctionTable:
    """Raises TargetError if the file cannot be read as an ELF file.

    .symtab has static functions too. If the file lacks it, `search` may find a debug file with one.
    """

    def __init__(self, path: str, search: DebugFileSearch) -> None:
        self.path = path
        try:
            elf = open_elf(Path(path))
        except OSError as error:
            raise TargetError(f"cannot open {path}: {error.strerror}") from None
        except BadElfError as error:
            raise TargetError(f"{path} cannot be read as an ELF file: {error.reason}") from None
        self.build_id = elf.build_id
        described = [described_file.elf for described_file in search.find(path, elf.build_id, elf)]
        self._files = [
            *described,
            *(inner for described_file in described if (inner := described_file.unpack_debugdata())),
        ]

    @cached_property
    def by_name(self) -> dict[str, list[TableSymbol]]:
        """Functions and data, each name with all its addresses."""
        found: dict[str, dict[int, TableSymbol]] = defaultdict(dict)
        for elf in self._files:
            for symbol in _symbols(elf):
                found[symbol.name].setdefault(symbol.vaddr, symbol)
        return {name: list(symbols.values()) for name, symbols in found.items()}

    @cached_property
    def _by_demangled(self) -> dict[str, list[str]]:
        """Symbol names by written names: with and without parameters; of templates also without their arguments."""
        found: dict[str, list[str]] = defaultdict(list)
        names = list(self.by_name)
        for name, shown in zip(names, demangle_all(names), strict=True):
            if shown != name:
                for written in [shown] if name.startswith(SPECIAL_NAMES) else written_names(shown):
                    found[written].append(name)
        return found

    def find(self, wanted: str, is_glob: bool) -> list[TableSymbol]:
        """Functions and data of that name; for a glob only functions."""
        if not is_glob:
            names = [wanted] if wanted in self.by_name else self._by_demangled.get(normal_name(wanted), [])
            names = names or [name for name in self.by_name if _CLONE.sub("", name) == wanted != name]
            return [
                symbol
                for name in names
                if name == wanted or not name.endswith(_COLD)
                for symbol in self.by_name[name]
            ]
        matches = re.compile(fnmatch.translate(wanted)).match
        names = [name for name in self.by_name if matches(name)]
        is_asked_for = re.compile(fnmatch.translate(normal_name(wanted))).match
        names += [name for shown, all_ in self._by_demangled.items() if is_asked_for(shown) for name in all_]
        symbols = [symbol for name in dict.fromkeys(names) for symbol in self.by_name[name]]
        return [symbol for symbol in symbols if symbol.kind == STT_FUNC and not symbol.name.endswith(_COLD)]

    def is_named_in_debug_information(self, name: str) -> bool:
        """Whether DWARF names it although it has no code: inlined everywhere."""
        needle = b"\0" + name.rpartition("::")[2].encode() + b"\0"
        for elf in self._files:
            section = elf.find(".debug_str")
            if section is not None and not section.flags & SHF_COMPRESSED and section.size <= _DEBUG_TEXT_MAX:
                return needle in b"\0" + bytes(elf.content(section))
        return False


def _symbols(elf: ElfSections) -> Iterator[TableSymbol]:
    for _, rows, strings in elf.symbol_tables():
        rows = rows[:_SYMBOLS_MAX]
        kind = rows["info"] & 15
        wanted = (rows["section"] > 0) & (rows["value"] > 0) & (rows["name"] > 0)
        wanted &= np.isin(kind, (STT_FUNC, STT_GNU_IFUNC, STT_OBJECT))
        columns = (rows[wanted][field].tolist() for field in ("name", "value", "size"))
        for name, value, size, kind_ in zip(*columns, kind[wanted].tolist(), strict=True):
            yield TableSymbol(text_at(strings, name).partition("@")[0], value, size, kind_)
