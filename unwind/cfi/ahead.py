"""Many functions of one section, decoded together and searched as arrays, if their programs are plain."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from memleak_android.unwind.cfi.compile import PlainRows, RowClass, compile_section, registers_in, row_of
from memleak_android.unwind.cfi.rules import UnwindRow
from memleak_android.unwind.cfi.section import CfiSection, Entries, groups

NOT_PLAIN = -1  # not a function number: left to the scalar decoder
NOT_INSIDE = -1  # not a line
_GROUP_MIN = 16  # functions of one CIE; fewer are not read as arrays
_WIDE = 0xFFFFFFFF  # not a length: marks 64-bit DWARF
_HEAD = 16  # bytes of an entry that are read before its length is checked
_DISTANCE_BITS = np.uint64(32)  # of a row from its function's start; longer functions are not plain


class _Column:
    """An array that grows at its end. filled: what has been appended so far."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.filled: NDArray[Any] = np.empty(0, dtype)
        self._room = self.filled

    def append(self, values: NDArray[Any]) -> None:
        before, after = len(self.filled), len(self.filled) + len(values)
        if after > len(self._room):
            self._room = np.empty(2 * after, self.filled.dtype)
            self._room[:before] = self.filled
        self._room[before:after] = values
        self.filled = self._room[:after]


class CfiAhead:
    """Functions have numbers in the order in which they were decoded, rows have lines.

    registers: DWARF numbers that get a column besides those that a sample of the functions shows.
    """

    def __init__(self, section: CfiSection, registers: Sequence[int] = ()) -> None:
        self._section = section
        self._registers = set(registers)
        self._columns: list[int] = []
        self._classes: dict[RowClass, int] = {}
        self._count = 0
        self._starts, self._lengths = _Column(np.uint64), _Column(np.uint64)  # by number
        # by row: its function's number and its distance from the start, ascending
        self._keys, self._lines = _Column(np.uint64), _Column(np.int64)
        self._states: list[NDArray[np.int32]] = []  # by line
        self._rows: dict[bytes, UnwindRow] = {}

    def decode(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the FDEs at distinct section offsets, NOT_PLAIN for some; any offsets will do."""
        numbers = np.full(len(offsets), NOT_PLAIN, np.int64)
        entries = self._entries(offsets)
        if len(entries.starts):
            if not self._columns:
                self._columns = sorted(self._registers | set(registers_in(self._section, entries)))
            plain = compile_section(self._section, entries, self._columns, self._classes)
            done, first = self._append(plain), self._count
            self._count += len(done)
            order = np.argsort(offsets)
            positions = order[np.searchsorted(offsets, entries.offsets[done], sorter=order)]
            numbers[positions] = np.arange(first, self._count)
        return numbers

    def find(self, numbers: NDArray[np.int64], vaddrs: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The line at each vaddr by the function of that number, NOT_INSIDE where it does not reach there."""
        distance = vaddrs - self._starts.filled[numbers]
        inside = distance < self._lengths.filled[numbers]
        keys = (numbers.astype(np.uint64) << _DISTANCE_BITS) + np.where(inside, distance, 0)
        lines = self._lines.filled[np.searchsorted(self._keys.filled, keys, "right") - 1]
        return np.where(inside, lines, NOT_INSIDE)

    def row(self, line: int) -> UnwindRow:
        """One line as a row."""
        state = self._states[line]
        key = state.tobytes()
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = row_of(state, tuple(self._classes), self._columns)
        return row

    def _append(self, plain: PlainRows) -> NDArray[np.int64]:
        """Adds functions that have all their rows here; returns which of the entries they are."""
        entries = plain.entries
        distances = plain.starts - entries.starts[plain.function]
        has_rows = np.zeros(len(entries.starts), np.bool_)
        has_rows[plain.function[distances == 0]] = True
        is_done = plain.is_done & has_rows & (entries.lengths >> _DISTANCE_BITS == 0)
        number_of = self._count + np.cumsum(is_done) - 1
        chosen = is_done[plain.function]
        numbers = number_of[plain.function[chosen]].astype(np.uint64)
        self._keys.append((numbers << _DISTANCE_BITS) + distances[chosen])
        self._lines.append(plain.line[chosen] + len(self._states))
        self._states.extend(plain.states)
        self._starts.append(entries.starts[is_done])
        self._lengths.append(entries.lengths[is_done])
        return np.flatnonzero(is_done)

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
