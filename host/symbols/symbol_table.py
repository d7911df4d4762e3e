"""Function symbols of ELF files as sorted columns: vaddr → symbol by binary search, many at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.elf_headers import (
    EM_ARM,
    SHF_EXECINSTR,
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_NOTYPE,
    ElfSections,
    text_at,
)

STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
SHN_LORESERVE = 0xFF00

MAX_NESTING = 64  # symbols looked back through for one that encloses an address; real nesting is ≤ 3
MAX_ALIASES = 256  # names compared at one address


@dataclass(frozen=True, slots=True)
class Symbol:
    """name: as in the file, without its version (`@VER`). vaddr: of its start."""

    name: str
    vaddr: int


class SymbolTable:
    """Functions of one module, united from every file that describes it.

    A symbol without a size reaches to the next symbol, never past its section's end, and is dropped where it
    lies inside a sized one (labels of hand-written assembly). An address in a gap has no symbol: in a stripped
    library the nearest exported function is most often the wrong one.
    """

    def __init__(self, files: list[ElfSections]) -> None:
        parts = [
            (strings, _function_rows(elf, symbols, strings))
            for elf in files
            for _, symbols, strings in elf.symbol_tables()
        ]
        self._strings = [strings for strings, _ in parts]
        columns = [
            np.column_stack((rows, np.full(len(rows), i, np.uint64))) for i, (_, rows) in enumerate(parts)
        ]
        rows = np.concatenate(columns) if columns else np.zeros((0, 7), np.uint64)
        rows = _drop_labels(rows)
        # Same start: the longest first, so that the walk back from a nested symbol reaches it.
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        self._start = np.ascontiguousarray(rows[:, 0])
        self._end = _reach(rows)
        self._rows = rows
        self._furthest_end = np.maximum.accumulate(self._end) if len(self._end) else np.zeros(0, np.uint64)

    def __len__(self) -> int:
        return len(self._start)

    def find(self, vaddrs: NDArray[np.uint64]) -> list[Symbol | None]:
        """For each vaddr the innermost symbol whose range holds it, None where none does."""
        found = self._find_rows(vaddrs)
        names: dict[int, Symbol] = {}
        result: list[Symbol | None] = []
        for row in found.tolist():
            if row < 0:
                result.append(None)
                continue
            if row not in names:
                names[row] = Symbol(self._best_name(row), int(self._start[row]))
            result.append(names[row])
        return result

    def _find_rows(self, vaddrs: NDArray[np.uint64]) -> NDArray[np.int64]:
        rows = np.searchsorted(self._start, vaddrs, side="right").astype(np.int64) - 1
        for _ in range(MAX_NESTING):
            below = np.flatnonzero(rows >= 0)
            hopeless = below[self._furthest_end[rows[below]] <= vaddrs[below]]
            rows[hopeless] = -1
            below = np.flatnonzero(rows >= 0)
            outside = below[self._end[rows[below]] <= vaddrs[below]]
            if not len(outside):
                return rows
            rows[outside] -= 1
        rows[outside] = -1
        return rows

    def _best_name(self, row: int) -> str:
        """The most readable name at the row's address: `malloc`, not `__libc_malloc`."""
        start = self._start[row]
        low = int(np.searchsorted(self._start, start, side="left"))
        high = int(np.searchsorted(self._start, start, side="right"))
        aliases = [self._alias(i) for i in range(low, min(high, low + MAX_ALIASES))]
        return min(aliases)[-1]

    def _alias(self, row: int) -> tuple[int, int, int, int, str]:
        size, name_offset, binding, kind, source = (int(self._rows[row, i]) for i in (1, 2, 3, 4, 6))
        name = text_at(self._strings[source], name_offset).split("@")[0]
        underscores = 0 if name.startswith("_Z") else len(name) - len(name.lstrip("_"))
        untyped = int(kind == STT_NOTYPE or not size)
        return (untyped, underscores, int(binding == STB_LOCAL), len(name), name)


def _function_rows(elf: ElfSections, symbols: NDArray[np.void], strings: memoryview) -> NDArray[np.uint64]:
    """Row = start, size, name, binding, type, section end."""
    executable = np.array([bool(s.flags & SHF_EXECINSTR) for s in elf.sections])
    section_end = np.array([(s.vaddr + s.size) & (2**64 - 1) for s in elf.sections], np.uint64)
    kind, section = symbols["info"] & 15, symbols["section"]
    defined = (section > 0) & (section < min(SHN_LORESERVE, len(elf.sections))) & (symbols["name"] > 0)
    wanted = defined & ((kind == STT_FUNC) | (kind == STT_GNU_IFUNC) | (kind == STT_NOTYPE))
    symbols, kind, section = symbols[wanted], kind[wanted], section[wanted]
    code = (kind != STT_NOTYPE) | executable[section]
    code &= (kind != STT_NOTYPE) | ~_starts_with_dollar(symbols["name"], strings)
    symbols, kind, section = symbols[code], kind[code], section[code]
    start = symbols["value"].astype(np.uint64)
    if elf.machine == EM_ARM:  # AAELF32 §5.5.3: bit 0 of a function's value says Thumb
        start = start & ~np.uint64(1)
    columns = (start, symbols["size"], symbols["name"], symbols["info"] >> 4, kind, section_end[section])
    return np.column_stack([c.astype(np.uint64) for c in columns])


def _starts_with_dollar(names: NDArray[np.uint32], strings: memoryview) -> NDArray[np.bool_]:
    """Mapping symbols of ARM ($a $t $d $x: AAELF32 §5.5.5) mark code and data; they are not names."""
    if not len(strings):
        return np.zeros(len(names), np.bool_)
    inside = np.minimum(names, len(strings) - 1)
    first: NDArray[np.bool_] = np.frombuffer(strings, np.uint8)[inside] == ord("$")
    return first


def _drop_labels(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Without the symbols of size 0 that lie inside or at the start of a sized one."""
    sized = rows[rows[:, 1] > 0]
    if not len(sized):
        return rows
    sized = sized[np.argsort(sized[:, 0], kind="stable")]
    furthest = np.maximum.accumulate(_saturating_sum(sized[:, 0], sized[:, 1]))
    at = np.searchsorted(sized[:, 0], rows[:, 0], side="right").astype(np.int64) - 1
    covered = (at >= 0) & (furthest[np.maximum(at, 0)] > rows[:, 0])
    return rows[(rows[:, 1] > 0) | ~covered]


def _reach(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """End of each symbol: start + size, or the next start (at most the section's end) when size is 0."""
    start = rows[:, 0]
    starts = np.unique(start)
    after = np.searchsorted(starts, start, side="right")
    following = np.append(starts, np.uint64(2**64 - 1))[after]
    open_end = np.minimum(following, np.maximum(rows[:, 5], start))
    return np.where(rows[:, 1] > 0, _saturating_sum(start, rows[:, 1]), open_end)


def _saturating_sum(start: NDArray[np.uint64], size: NDArray[np.uint64]) -> NDArray[np.uint64]:
    total = start + size
    return np.where(total < start, np.uint64(2**64 - 1), total)
