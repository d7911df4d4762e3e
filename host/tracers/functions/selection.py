"""Finds the symbol of a loaded file for each request, and reports requests without one."""

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from memleak_android.host.console import one_line
from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.slots import called_names
from memleak_android.host.errors import MemleakError, TargetError
from memleak_android.host.symbols.debug_files import DebugFileSearch, open_elf
from memleak_android.host.symbols.demangle import demangle, demangle_all
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.host.tracers.functions.inlined import is_inlined
from memleak_android.host.tracers.functions.requests import FunctionRequest
from memleak_android.host.tracers.functions.written_names import SPECIAL_NAMES, normal_name, written_names
from memleak_android.unwind.elf_headers import (
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_OBJECT,
    ElfSections,
    text_at,
)
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.errors import BadElfError

_SYMBOLS_MAX = 4_000_000
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

    def is_imported(self, name: str) -> bool:
        """Whether the file calls it in another one."""
        return any(
            text_at(strings, at).partition("@")[0] == name
            for elf in self._files
            for _, rows, strings in elf.symbol_tables()
            for at in rows["name"][:_SYMBOLS_MAX][rows["section"][:_SYMBOLS_MAX] == 0].tolist()
        )

    def is_inlined(self, name: str) -> bool | None:
        """Whether DWARF knows it as a function whose code is in its callers. None: not known."""
        last, answers = name.rpartition("::")[2], set[bool | None]()
        for elf in self._files:
            with suppress(BadElfError):
                answers.add(is_inlined(ElfImage(elf.data, self.path), last))
        return True in answers or (None if None in answers else False)


def _symbols(elf: ElfSections) -> Iterator[TableSymbol]:
    for _, rows, strings in elf.symbol_tables():
        rows = rows[:_SYMBOLS_MAX]
        kind = rows["info"] & 15
        wanted = (rows["section"] > 0) & (rows["value"] > 0) & (rows["name"] > 0)
        wanted &= np.isin(kind, (STT_FUNC, STT_GNU_IFUNC, STT_OBJECT))
        columns = (rows[wanted][field].tolist() for field in ("name", "value", "size"))
        for name, value, size, kind_ in zip(*columns, kind[wanted].tolist(), strict=True):
            yield TableSymbol(text_at(strings, name).partition("@")[0], value, size, kind_)


_NAMES_SHOWN = 6

# Itanium C++ ABI, "Exception Handling", §2.4.3; Rust's library/std/src/panicking.rs.
_THROWERS = {"__cxa_throw", "rust_panic"}
# Imports of what else unwinds (_Unwind_Resume: cleanups; glibc's nptl/unwind.c ends threads so), or loads code that may.
_UNWINDERS = {
    *("_Unwind_ForcedUnwind", "_Unwind_RaiseException", "_Unwind_Resume", "pthread_cancel", "pthread_exit"),
    *("thrd_exit",),
}
_LOADERS = {"android_dlopen_ext", "dlmopen", "dlopen"}


@dataclass(frozen=True, slots=True)
class FoundFunction:
    """One function of one file in one process.

    name: for printing.
    size: in bytes, 0 = unknown.
    parts: offsets of its code elsewhere (`name.cold`).
    """

    name: str
    request: FunctionRequest
    file: ProbedFile
    file_offset: int
    size: int
    parts: tuple[range, ...] = ()


class Selection:
    """Finds functions.

    problems: one sentence for each request, or part of it, without a function.
    opened: path by which a file can be read on this machine; raises TargetError.
    way_out: for more than max_matches, which it may contain.
    """

    def __init__(
        self,
        search: DebugFileSearch,
        max_matches: int,
        opened: Callable[[ProbedFile], str],
        way_out: str = "allow that by --max-matches {}",
    ) -> None:
        self._search = search
        self._opened = opened
        self._max_matches = max_matches
        self._way_out = way_out
        self._tables: dict[str, FunctionTable] = {}
        self._elf_files: dict[str, ElfFile] = {}
        self.problems: list[str] = []

    def elf(self, file: ProbedFile) -> ElfFile:
        """Raises TargetError."""
        path = self._opened(file)
        if path not in self._elf_files:
            try:
                self._elf_files[path] = ElfFile(path)
            except OSError as error:
                raise TargetError(f"cannot open {path}: {error.strerror}") from None
        return self._elf_files[path]

    def can_unwind(self, files: Sequence[ProbedFile]) -> bool:
        """Whether an exception or the end of a thread may leave frames of the files. A library that is stripped and has its runtime
        inside is not recognised.
        """
        for file in files:
            with suppress(MemleakError):  # what is mapped and no ELF file unwinds nothing
                elf = self.elf(file)
                known = _THROWERS if elf.dynamic else _THROWERS | _UNWINDERS | _LOADERS
                is_known = not elf.dynamic and not any(elf.symbol_tables())
                if is_known or elf.dynamic_functions(_THROWERS) or elf.static_functions(known):
                    return True
                if not called_names(elf).isdisjoint(_UNWINDERS | _LOADERS):
                    return True
        return False

    def find(self, request: FunctionRequest, files: Sequence[ProbedFile]) -> list[FoundFunction]:
        """Finds functions in the files of one process."""
        candidates = list(_candidates(request, files))
        if not candidates:
            process = f"process {files[0].pid}" if files and files[0].pid else "the command"
            names = ", ".join(os.path.basename(file.path) for file in files[:_NAMES_SHOWN])
            more = "…" if len(files) > _NAMES_SHOWN else ""
            self._complain(f"{request.text}: {process} has no file {request.library} (it has {names}{more})")
            return []
        try:
            if request.file_offset is not None:
                return [self._by_offset(request, request.file_offset, candidates[0])]
            return self._by_name(request, candidates)
        except MemleakError as error:
            self._complain(f"{request.text}: {error}")
            return []

    def _by_offset(self, request: FunctionRequest, offset: int, file: ProbedFile) -> FoundFunction:
        if self.elf(file).text_segment(offset) is None:
            raise TargetError(f"offset {offset:#x} of {file.path} is not in an executable segment")
        name = request.display or f"{os.path.basename(file.path)}{request.symbol}"
        return FoundFunction(name, request, file, offset, 0)

    def _by_name(self, request: FunctionRequest, candidates: Sequence[ProbedFile]) -> list[FoundFunction]:
        symbols = [
            (file, symbol)
            for file in candidates
            for symbol in self._table(file).find(request.symbol, request.is_glob)
        ]
        functions = [made for file, symbol in symbols if (made := self._function(request, file, symbol))]
        unique = list(
            {
                (function.file.agent_path, function.file_offset): function for function in reversed(functions)
            }.values()
        )[::-1]
        if len(unique) > self._max_matches:
            raise TargetError(f"it matches {len(unique)} functions", self._way_out.format(len(unique)))
        if not symbols:
            raise TargetError(*self._missing(request, candidates))
        return unique

    def _function(
        self, request: FunctionRequest, file: ProbedFile, symbol: TableSymbol
    ) -> FoundFunction | None:
        """None, and a sentence, for a symbol that is not code or cannot be probed."""
        if symbol.kind == STT_OBJECT:
            self._complain(
                f"{request.text}: {symbol.name} in {os.path.basename(file.path)} is data, not a function"
            )
            return None
        if symbol.kind == STT_GNU_IFUNC:
            self._complain(
                f"{request.text}: the address of {symbol.name} is chosen at run time (ifunc);"
                f" name one of its implementations, such as __{symbol.name}_*"
            )
            return None
        elf = self.elf(file)
        offset = elf.file_offset(symbol.vaddr)
        if offset is None or elf.text_segment(offset) is None:
            self._complain(f"{request.text}: {symbol.name} is not in an executable segment of {file.path}")
            return None
        name = request.display if request.display and not request.is_glob else demangle(symbol.name)
        return FoundFunction(one_line(name), request, file, offset, symbol.size, self._parts(file, symbol))

    def _parts(self, file: ProbedFile, symbol: TableSymbol) -> tuple[range, ...]:
        elf, found = self.elf(file), []
        for part in self._table(file).by_name.get(f"{symbol.name}.cold", ()):
            offset = elf.file_offset(part.vaddr)
            if offset is not None and part.size:
                found.append(range(offset, offset + part.size))
        return tuple(found)

    def _missing(self, request: FunctionRequest, candidates: Sequence[ProbedFile]) -> tuple[str, str]:
        name = os.path.basename(candidates[0].path)
        if any(self._table(file).is_imported(request.symbol) for file in candidates):
            return f"{name} calls that of another file", f"name that file, as in libc.so.6:{request.symbol}"
        files = [] if request.is_glob else candidates
        inlined = {self._table(file).is_inlined(request.symbol) for file in files}
        if True in inlined:
            return (
                f"{name} has no code of its own for it: inlined wherever it is called",
                "probe a function that calls it",
            )
        kind = "no function matches" if request.is_glob else "no such function"
        perhaps = "" if None not in inlined else ", or it is inlined wherever it is called"
        return f"{kind} in {name}{perhaps}", "name it as `nm -D` does, or by +0xOFFSET in a stripped file"

    def _table(self, file: ProbedFile) -> FunctionTable:
        path = self._opened(file)
        if path not in self._tables:
            self._tables[path] = FunctionTable(path, self._search)
        return self._tables[path]

    def _complain(self, sentence: str) -> None:
        if sentence not in self.problems:
            self.problems.append(sentence)


def _candidates(request: FunctionRequest, files: Sequence[ProbedFile]) -> Iterator[ProbedFile]:
    """The files that match a request's library by path, name, name without version, or glob of one of these."""
    if not request.library:
        yield from files[:1]
        return
    is_named = _matcher(request.library)
    for file in files:
        base = os.path.basename(file.path)
        if any(map(is_named, (file.path, base, base.partition(".so")[0]))):
            yield file


def _matcher(library: str) -> Callable[[str], bool]:
    if any(c in library for c in "*?["):
        return lambda name: fnmatch.fnmatchcase(name, library)
    real = os.path.realpath(library) if library.startswith("/") else library
    return lambda name: name in (library, real)
