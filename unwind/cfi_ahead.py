"""Many functions of one section decoded together, as far as their programs are plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi import CfiSection, Entries, groups
from memleak_android.unwind.cfi_compile import PlainRows, RowClass, compile_section, registers_in, row_of
from memleak_android.unwind.rules import UnwindRow

_GROUP_MIN = 16  # functions of one CIE; fewer are not read as arrays
_WIDE = 0xFFFFFFFF  # in place of a length: 64-bit DWARF
_HEAD = 16  # bytes of an entry that are looked at without looking


class PlainFunction(NamedTuple):
    """Rows of [start, end), as table.FunctionRows has them; offset: of the FDE."""

    offset: int
    start: int
    end: int
    starts: list[int]
    row: Callable[[int], UnwindRow]


class CfiAhead:
    """registers: DWARF numbers that get a column besides those that a sample of the functions shows."""

    def __init__(self, section: CfiSection, registers: Sequence[int] = ()) -> None:
        self._section = section
        self._registers = set(registers)
        self._columns: list[int] = []
        self._classes: dict[RowClass, int] = {}

    def functions(self, offsets: NDArray[np.int64]) -> Iterator[PlainFunction]:
        """Those of the FDEs at distinct section offsets that are plain; any offsets will do."""
        entries = self._entries(offsets)
        if not len(entries.starts):
            return
        if not self._columns:
            seen = registers_in(self._section, entries)
            self._columns = sorted(self._registers | set(seen))
        plain = compile_section(self._section, entries, self._columns, self._classes)
        yield from _functions(plain, tuple(self._classes), self._columns)

    def _entries(self, offsets: NDArray[np.int64]) -> Entries:
        section, size = self._section, len(self._section.data)
        offsets = offsets[(offsets >= 0) & (offsets <= size - _HEAD)]
        image = np.frombuffer(section.data, np.uint8)
        head = image[offsets[:, None] + np.arange(8)].view("<u4").astype(np.int64).reshape(-1, 2)
        cies = offsets + 4 - head[:, 1] if section.is_eh else head[:, 1]
        is_fde = (head[:, 1] != 0) if section.is_eh else (head[:, 1] != _WIDE)
        good = is_fde & (head[:, 0] != _WIDE) & (offsets + 4 + head[:, 0] <= size) & (cies >= 0)
        offsets, cies = offsets[good], cies[good]
        starts, lengths = np.zeros(len(offsets), np.uint64), np.zeros(len(offsets), np.uint64)
        for cie_offset, members in groups(cies):
            if len(members) >= _GROUP_MIN:
                starts[members], lengths[members] = section.ranges_of(offsets[members], cie_offset)
        found = np.flatnonzero(lengths)
        return Entries(starts[found], lengths[found], offsets[found], cies[found])


def _functions(
    plain: PlainRows, classes: Sequence[RowClass], registers: Sequence[int]
) -> Iterator[PlainFunction]:
    entries, rows = plain.entries, dict[int, UnwindRow]()

    def row(line: int) -> UnwindRow:
        found = rows.get(line)
        if found is None:
            found = rows[line] = row_of(plain.states[line], classes, registers)
        return found

    def by_number(lines: list[int]) -> Callable[[int], UnwindRow]:
        return lambda i: row(lines[i])

    bounds = np.searchsorted(plain.function, np.arange(len(entries.starts) + 1)).tolist()
    starts, lines = plain.starts.tolist(), plain.line.tolist()
    begins, lengths = entries.starts.tolist(), entries.lengths.tolist()
    offsets = entries.offsets.tolist()
    for i in np.flatnonzero(plain.is_done).tolist():
        first, last = bounds[i], bounds[i + 1]
        if first < last:
            begin, end = begins[i], begins[i] + lengths[i]
            yield PlainFunction(offsets[i], begin, end, starts[first:last], by_number(lines[first:last]))
