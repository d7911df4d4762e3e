"""CompiledTable: the rows of a whole file, found by one binary search; and how it is made from row sources."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.compile import (
    PlainRows,
    RowClass,
    compile_section,
    registers_in,
    row_of,
    state_of,
)
from memleak_android.unwind.cfi.engine_rows import FIRST_RULE
from memleak_android.unwind.cfi.rules import UnwindRow
from memleak_android.unwind.cfi.section import Entries
from memleak_android.unwind.cfi.table import NO_ROW, CfiSource, RowSource
from memleak_android.unwind.errors import BadCfiError

ASK = -2  # the row is not plain, or functions overlap here: the sources know
_REGISTERS_MAX = 72  # with columns of their own; ART names 63 in each CIE for arm64
_ROWS_BY_HAND_MAX = 1 << 17  # bounds memory
_VADDR_MAX = 1 << 62
_UNKNOWN_MAX = 1 << 12  # entries of a search table that a walk through the section has not met


@dataclass(frozen=True, slots=True)
class CompiledTable:
    """starts: ascending vaddrs, less `base`. ids: from there on, a line of `states`, NO_ROW or ASK.

    states: (lines, FIRST_RULE + registers) as cfi_lockstep has them. classes: by the number in column CLASS.
    registers: DWARF numbers of the columns, ascending.
    """

    starts: NDArray[np.uint64] | NDArray[np.uint32]
    ids: NDArray[np.int32]
    states: NDArray[np.int32]
    classes: tuple[RowClass, ...]
    registers: tuple[int, ...]
    base: int = 0

    def find(self, vaddrs: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each vaddr a line of `states`, NO_ROW or ASK."""
        if not len(self.ids):
            return np.full(len(vaddrs), NO_ROW, np.int64)
        base = np.uint64(self.base)
        # a distance too large for the column is behind all rows
        distances = np.minimum(vaddrs - base, np.iinfo(self.starts.dtype).max).astype(self.starts.dtype)
        at = np.searchsorted(self.starts, distances, "right") - 1
        return np.where((at < 0) | (vaddrs < base), NO_ROW, self.ids[np.maximum(at, 0)])

    def row(self, line: int) -> UnwindRow:
        """One line as a row."""
        return row_of(self.states[line], self.classes, self.registers)


@dataclass(frozen=True, slots=True)
class _Steps:
    """A function of the vaddr: ids[i] from starts[i] on."""

    starts: NDArray[np.uint64]
    ids: NDArray[np.int64]


def compile_table(arch: Arch, sources: Iterable[RowSource]) -> CompiledTable:
    """Every row of every source; the first source that knows a vaddr wins."""
    tables = [
        (source, source.section.entries() if isinstance(source, CfiSource) else None) for source in sources
    ]
    registers = {arch.dwarf_of(slot) for slot in (*arch.callee_saved, arch.pc)} | {arch.return_register}
    seen: Counter[int] = Counter()
    for source, entries in tables:
        if isinstance(source, CfiSource) and entries is not None:
            seen += registers_in(source.section, entries)
    lines = _Lines(sorted(registers.union(register for register, _ in seen.most_common(_REGISTERS_MAX))))
    steps = _Steps(np.empty(0, np.uint64), np.empty(0, np.int64))
    for source, entries in tables:
        if isinstance(source, CfiSource) and entries is not None:
            if _is_complete(source, entries):
                plain = compile_section(source.section, entries, lines.registers, lines.classes)
                found = _of_entries(source, plain, lines)
            else:
                found = _Steps(np.zeros(1, np.uint64), np.array([ASK]))
        else:
            found = _of_index(source, lines)
        steps = _first_wins(steps, found)
    return lines.table(steps)


def _is_complete(source: CfiSource, entries: Entries) -> bool:
    """Whether a walk has found all functions that the search table names; through a damaged section it does not."""
    if source.index is None:
        return True
    unknown = np.setdiff1d(source.index.offsets, entries.offsets).tolist()
    return len(unknown) < _UNKNOWN_MAX and not any(_has_code(source, offset) for offset in unknown)


def _has_code(source: CfiSource, offset: int) -> bool:
    try:
        fde = source.section.fde(offset)
    except BadCfiError:
        return False
    return 0 < fde.start < fde.end


class _Lines:
    """Distinct states with their classes, as one table over all sources."""

    def __init__(self, registers: Sequence[int]) -> None:
        self.registers = list(registers)
        self.classes: dict[RowClass, int] = {}
        self.blocks = [np.empty((0, FIRST_RULE + len(registers)), np.int32)]
        self.count = 0
        self.of_row: dict[UnwindRow, int] = {}

    def of_functions_row(self, row: UnwindRow) -> int:
        line = self.of_row.get(row)
        if line is None:
            state = state_of(row, self.registers, self.classes)
            line = ASK if state is None else self.add(state[None])
            self.of_row[row] = line
        return line

    def add(self, block: NDArray[np.int32]) -> int:
        first = self.count
        self.blocks.append(block)
        self.count += len(block)
        return first

    def table(self, steps: _Steps) -> CompiledTable:
        states = np.concatenate(self.blocks)
        ids = steps.ids.astype(np.int32)
        return CompiledTable(steps.starts, ids, states, tuple(self.classes), tuple(self.registers))


def _of_entries(source: RowSource, plain: PlainRows, lines: _Lines) -> _Steps:
    """The rows of functions that overlap no other; ASK over the others."""
    first_line = lines.add(plain.states)
    starts, lengths = plain.entries.starts, plain.entries.lengths
    if not len(starts):
        return _Steps(starts, np.empty(0, np.int64))
    clipped = np.minimum(starts, np.uint64(_VADDR_MAX)) + np.minimum(lengths, np.uint64(_VADDR_MAX))
    ends = np.maximum.accumulate(clipped)
    begins = np.concatenate([[True], starts[1:] >= ends[:-1]])
    cluster = np.cumsum(begins) - 1
    is_alone = np.bincount(cluster) == 1
    is_alone = is_alone[cluster]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(starts)) - 1
    good = (is_alone & plain.is_done)[plain.function]
    ask = first[~is_alone[first]]
    by_hand = np.flatnonzero(is_alone & ~plain.is_done)
    return _sorted_steps(
        (ends[last], np.full(len(last), NO_ROW, np.int64)),
        (starts[ask], np.full(len(ask), ASK, np.int64)),
        _of_functions(source, starts[by_hand].tolist(), plain.entries.offsets[by_hand].tolist(), lines)[:2],
        (plain.starts[good], plain.line[good] + first_line),
    )


def _sorted_steps(*pieces: tuple[NDArray[np.uint64], NDArray[np.int64]]) -> _Steps:
    """Pieces by vaddr; of several for one vaddr the last piece's holds. A step that changes nothing goes."""
    starts = np.concatenate([piece[0] for piece in pieces])
    ids = np.concatenate([piece[1] for piece in pieces])
    order = np.argsort(starts, kind="stable")
    starts, ids = starts[order], ids[order]
    keep = np.append(starts[1:] != starts[:-1], [True]) if len(starts) else np.empty(0, np.bool_)
    starts, ids = starts[keep], ids[keep]
    changes = np.append([True], ids[1:] != ids[:-1]) if len(ids) else np.empty(0, np.bool_)
    return _Steps(starts[changes], ids[changes])


def _of_index(source: RowSource, lines: _Lines) -> _Steps:
    """A source without a compiler of its own (exidx): entry by entry."""
    *_, index = source.indexes()
    starts, ids, ends = _of_functions(source, index.starts.tolist(), index.offsets.tolist(), lines)
    return _sorted_steps((ends, np.full(len(ends), NO_ROW, np.int64)), (starts, ids))


def _of_functions(
    source: RowSource, begins: list[int], offsets: list[int], lines: _Lines
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64]]:
    """(starts, lines) of rows by the scalar decoder, and the ends of the functions. They do not overlap.

    begins, offsets: of the functions.
    """
    starts: list[int] = []
    ids: list[int] = []
    ends: list[int] = []
    for begin, offset in zip(begins, offsets, strict=True):
        if len(starts) >= _ROWS_BY_HAND_MAX:
            starts.append(begin)
            ids.append(ASK)
            continue
        try:
            rows = source.function(offset)
        except BadCfiError:
            continue
        if rows.end <= rows.start:
            continue
        ends.append(rows.end)
        found = [
            (first, lines.of_functions_row(rows.row(i)))
            for i, first in enumerate(rows.starts)
            if first < rows.end
        ]
        for first, line in found or [(rows.start, ASK)]:
            starts.append(first)
            ids.append(line)
    return np.array(starts, np.uint64), np.array(ids, np.int64), np.array(ends, np.uint64)


def _first_wins(first: _Steps, second: _Steps) -> _Steps:
    """first where it has rules, else second."""
    if not len(first.starts) or not len(second.starts):
        return second if len(second.starts) else first
    bounds = np.union1d(first.starts, second.starts)
    ids = _at(first, bounds)
    return _sorted_steps((bounds, np.where(ids == NO_ROW, _at(second, bounds), ids)))


def _at(steps: _Steps, vaddrs: NDArray[np.uint64]) -> NDArray[np.int64]:
    at = np.searchsorted(steps.starts, vaddrs, "right") - 1
    if not len(steps.ids):
        return np.full(len(vaddrs), NO_ROW, np.int64)
    return np.where(at < 0, NO_ROW, steps.ids[np.maximum(at, 0)])
