"""UnwindTable: the rows of one module, decoded only for functions that stacks contain."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.ahead import NOT_PLAIN, CfiAhead
from memleak_android.unwind.cfi.program import decode
from memleak_android.unwind.cfi.rules import UnwindRow
from memleak_android.unwind.cfi.section import CfiSection, FdeIndex
from memleak_android.unwind.errors import BadCfiError

if TYPE_CHECKING:
    from memleak_android.unwind.cfi.compiled import CompiledTable

NO_ROW = -1
BAD_ROW = -2  # there is CFI, but it is malformed
_DECODED_MAX = 4  # times the section's size: entries made to overlap each other must not cost more
_AHEAD_MIN = 24  # functions; fewer are decoded as quickly one by one
_NOT_TRIED = -2  # not a function number of CfiAhead
_OVERLAPS_MAX = 8  # how far back to search for an FDE that begins before its neighbour and ends after it


class FunctionRows(NamedTuple):
    """The rules of one entry, for vaddrs [start, end). starts: first vaddr of each row, none when malformed.

    row(i): the i-th row.
    """

    start: int
    end: int
    starts: list[int]
    row: Callable[[int], UnwindRow]


class RowSource(Protocol):
    """One table of unwind rules, whatever its format."""

    def indexes(self) -> Iterator[FdeIndex]:
        """Indexes to find an entry by vaddr: the fast one first, the most reliable one last."""

    def function(self, offset: int) -> FunctionRows:
        """The entry at an offset of an index. Raises BadCfiError if there is none."""


def malformed(start: int, end: int) -> FunctionRows:
    """Unusable rules for [start, end)."""
    return FunctionRows(start, end, [], _no_row)


def _no_row(i: int) -> UnwindRow:
    raise IndexError(i)


@dataclass(slots=True)
class CfiSource:
    """One section and the index to search it by; index None: scan the section when first needed."""

    section: CfiSection
    index: FdeIndex | None
    _scanned: FdeIndex | None = None
    _decoded_bytes: int = 0
    decoded: CfiAhead | None = None

    def indexes(self) -> Iterator[FdeIndex]:
        if self.index is not None:
            yield self.index
        if self._scanned is None:
            self._scanned = self.section.scan()
        yield self._scanned

    def ahead(self, offsets: NDArray[np.int64]) -> CfiAhead | None:
        """The batch decoder for the entries at some offsets; None if it would cost too much."""
        data = np.frombuffer(self.section.data, np.uint8)
        inside = offsets[(offsets >= 0) & (offsets <= len(data) - 4)]
        lengths = data[inside[:, None] + np.arange(4)].view("<u4")
        self._decoded_bytes += int(np.minimum(lengths, len(data)).astype(np.int64).sum())
        if self._decoded_bytes > _DECODED_MAX * len(data):
            return None
        if self.decoded is None:
            self.decoded = CfiAhead(self.section)
        return self.decoded

    def function(self, offset: int) -> FunctionRows:
        fde = self.section.fde(offset)
        self._decoded_bytes += fde.program[1] - fde.program[0]
        if self._decoded_bytes > _DECODED_MAX * len(self.section.data):
            return malformed(fde.start, fde.end)
        try:
            decoded = decode(self.section, fde)
        except BadCfiError:
            return malformed(fde.start, fde.end)
        method, cie = self.section.method, fde.cie
        return FunctionRows(fde.start, fde.end, decoded.starts, lambda i: decoded.row(i, cie, method))


class UnwindTable:
    """rows: the distinct rows met so far; row_ids() gives positions in it.

    sources: the first that has rules for a vaddr wins. They are taken one by one as those before do not
    suffice, so that making one may be expensive.
    supply: returns compiled rows of the whole file once that pays, by the number of vaddrs looked up so far; None =
    functions are decoded one by one.
    """

    def __init__(self, arch: Arch, sources: Iterable[RowSource]) -> None:
        self.arch = arch
        self.rows: list[UnwindRow] = []
        self._more = iter(sources)
        self._sources: list[_Source] = []
        self._id_of_row: dict[UnwindRow, int] = {}
        self.compiled: CompiledTable | None = None
        self.supply: Callable[[int], CompiledTable | None] | None = None
        self._asked = 0
        self._ids_of_compiled = LineIds()

    @property
    def sources(self) -> Iterator[RowSource]:
        """All of them, those that were not needed so far, too."""
        return (source.table for source in self._every_source())

    def row_at(self, vaddr: int) -> UnwindRow | None:
        """The row for one vaddr. Raises BadCfiError where the CFI for it is malformed."""
        row_id = int(self.row_ids(np.array([vaddr], np.uint64))[0])
        if row_id == BAD_ROW:
            raise BadCfiError("the rules for this address cannot be decoded", vaddr)
        return None if row_id == NO_ROW else self.rows[row_id]

    def row_ids(self, vaddrs: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each vaddr the position in `rows`, NO_ROW or BAD_ROW. Decodes what is not known yet."""
        ids = np.full(len(vaddrs), NO_ROW, np.int64)
        open_ = np.arange(len(vaddrs))
        if self.compiled is None and self.supply is not None:
            self._asked += len(vaddrs)
            self.compile_with(self.supply(self._asked))
        if self.compiled is not None:
            lines, row = self.compiled.find(vaddrs), self.compiled.row
            known = np.flatnonzero(lines >= 0)
            ids[known] = self._ids_of_compiled.of(lines[known], lambda line: self._intern(row(line)))
            open_ = np.flatnonzero(lines < NO_ROW)
            if not len(open_):
                return ids
        for source in self._every_source():
            for number, index in enumerate(source.table.indexes()):
                open_ = self._search(source, number, index, vaddrs, open_, ids)
                if not len(open_):
                    return ids
        return ids

    def function_at(self, vaddr: int) -> tuple[int, int] | None:
        """Start and end of the function around a vaddr, by its FDE; None = it has none (entries of .ARM.exidx have no end)."""
        for table in self.sources:
            if not isinstance(table, CfiSource):
                continue
            for index in table.indexes():
                last = int(np.searchsorted(index.starts, np.uint64(vaddr), "right")) - 1
                for i in range(last, max(last - _OVERLAPS_MAX, -1), -1):
                    start, end = _bounds(table, int(index.offsets[i]))
                    if start <= vaddr < end:
                        return start, end
        return None

    def compile_with(self, compiled: CompiledTable | None) -> None:
        """Takes rows of the whole file that were compiled from these very sources."""
        self.compiled = compiled
        self._ids_of_compiled = LineIds()

    def _every_source(self) -> Iterator[_Source]:
        position = 0
        while True:
            if position == len(self._sources):
                table = next(self._more, None)
                if table is None:
                    return
                self._sources.append(_Source(table))
            yield self._sources[position]
            position += 1

    def _search(
        self,
        source: _Source,
        number: int,
        index: FdeIndex,
        vaddrs: NDArray[np.uint64],
        open_: NDArray[np.int64],
        ids: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Fills ids[open_] from the index of that number; returns those for which no usable entry was found."""
        if not len(index.starts) or not len(open_):
            return open_
        wanted = vaddrs[open_]
        candidates = np.searchsorted(index.starts, wanted, "right") - 1
        found = self._search_ahead(source, number, index, candidates, wanted)
        for i in np.flatnonzero(found == NO_ROW).tolist():
            found[i] = self._row_id(source, index, int(candidates[i]), int(wanted[i]))
        ids[open_] = np.where(found == NO_ROW, ids[open_], found)
        return open_[found < 0]

    def _search_ahead(
        self,
        source: _Source,
        number: int,
        index: FdeIndex,
        candidates: NDArray[np.int64],
        vaddrs: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """Positions in `rows` for vaddrs in candidates that can be decoded together, NO_ROW for the others."""
        found = np.full(len(vaddrs), NO_ROW, np.int64)
        if not isinstance(source.table, CfiSource):
            return found
        ahead, numbers = _decode_ahead(source, source.table, number, index, candidates[candidates >= 0])
        chosen = np.flatnonzero((numbers[candidates] >= 0) & (candidates >= 0))
        if ahead is not None and len(chosen):
            lines = ahead.find(numbers[candidates[chosen]], vaddrs[chosen])
            chosen, lines = chosen[lines >= 0], lines[lines >= 0]
            found[chosen] = source.ids_ahead.of(lines, lambda line: self._intern(ahead.row(line)))
        return found

    def _row_id(self, source: _Source, index: FdeIndex, candidate: int, vaddr: int) -> int:
        for i in range(candidate, max(candidate - _OVERLAPS_MAX, -1), -1):
            offset = int(index.offsets[i])
            function = source.functions.get(offset)
            if function is None:
                function = source.functions[offset] = _function_of(source.table, offset)
            if function.rows.start <= vaddr < function.rows.end:
                return self._row_of(function, vaddr)
        return NO_ROW

    def _row_of(self, function: _Function, vaddr: int) -> int:
        if not function.ids:
            return BAD_ROW
        i = bisect_right(function.rows.starts, vaddr) - 1
        row_id = function.ids[i]
        if row_id is None:
            row_id = function.ids[i] = self._intern(function.rows.row(i))
        return row_id

    def _intern(self, row: UnwindRow) -> int:
        row_id = self._id_of_row.get(row)
        if row_id is None:
            row_id = self._id_of_row[row] = len(self.rows)
            self.rows.append(row)
        return row_id


class LineIds:
    """Numbers of another table's lines, added on first use."""

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)

    def of(self, lines: NDArray[np.int64], number: Callable[[int], int]) -> NDArray[np.int64]:
        """number: of a line."""
        more = int(lines.max(initial=-1)) + 1 - len(self._ids)
        if more > 0:
            self._ids = np.append(self._ids, np.full(more, NO_ROW, np.int64))
        new = np.unique(lines[self._ids[lines] == NO_ROW]).tolist()
        self._ids[new] = [number(line) for line in new]
        found: NDArray[np.int64] = self._ids[lines]
        return found


@dataclass(slots=True)
class _Source:
    """functions: by offset, those decoded one by one. ahead: for each index its entries' numbers in CfiAhead."""

    table: RowSource
    functions: dict[int, _Function] = field(default_factory=dict)
    ahead: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    ids_ahead: LineIds = field(default_factory=LineIds)


@dataclass(slots=True)
class _Function:
    """ids: positions in UnwindTable.rows, None until asked for."""

    rows: FunctionRows
    ids: list[int | None]


def _decode_ahead(
    source: _Source, table: CfiSource, number: int, index: FdeIndex, candidates: NDArray[np.int64]
) -> tuple[CfiAhead | None, NDArray[np.int64]]:
    """The batch decoder, and for each index entry its function number there; decodes entries not seen before."""
    numbers = source.ahead.get(number)
    if numbers is None:
        numbers = source.ahead[number] = np.full(len(index.starts), _NOT_TRIED, np.int64)
    new = np.unique(candidates[numbers[candidates] == _NOT_TRIED])
    if len(new) < _AHEAD_MIN:
        return table.decoded, numbers
    offsets, first = np.unique(index.offsets[new], return_index=True)
    new = new[first]
    ahead = table.ahead(offsets)
    numbers[new] = NOT_PLAIN if ahead is None else ahead.decode(offsets)
    return ahead or table.decoded, numbers


def _bounds(table: CfiSource, offset: int) -> tuple[int, int]:
    """Nothing where the entry is malformed."""
    try:
        fde = table.section.fde(offset)
    except BadCfiError:
        return 0, 0
    return fde.start, fde.end


def _function_of(table: RowSource, offset: int) -> _Function:
    try:
        rows = table.function(offset)
    except BadCfiError:
        rows = malformed(0, 0)
    return _Function(rows, [None] * len(rows.starts))
