"""All rows of one CFI section at once: what is plain as columns, the rest named, for the scalar decoder."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi.engine_rows import (
    ABSENT,
    ALIGN_MAX,
    FIRST_RULE,
    SAME_VALUE,
    UNDEFINED,
    Programs,
    run,
)
from memleak_android.unwind.cfi.program import decode
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.cfi.section import CfiSection, Entries, Fde, groups
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.trace import Method

_REGISTERS_MAX = 128  # ML_CFI_REGISTERS
_SAMPLES = 48
_PROGRAM_MAX = 4096  # bytes; of those in the sample
_PLAIN_MARKS = {RuleKind.UNDEFINED: UNDEFINED, RuleKind.SAME_VALUE: SAME_VALUE}
_KIND_OF_MARK = {mark: rule for rule, mark in _PLAIN_MARKS.items()}


class RowClass(NamedTuple):
    """The part that all rows of one CIE share. cfa_expression: that of procedure linkage tables, or empty."""

    return_register: int
    is_signal: bool
    method: Method
    cfa_expression: bytes = b""


class PlainRows(NamedTuple):
    """Rows by function, and which functions have all of theirs here.

    function: number in `entries`. starts: vaddrs. line: which of the distinct `states`, whose shape is (lines,
    FIRST_RULE + registers).
    """

    entries: Entries
    function: NDArray[np.int64]
    starts: NDArray[np.uint64]
    line: NDArray[np.int64]
    states: NDArray[np.int32]
    is_done: NDArray[np.bool_]


def registers_in(section: CfiSection, entries: Entries) -> Counter[int]:
    """Registers that rules are about, and how often, seen in a sample of the functions."""
    found: Counter[int] = Counter()
    for offset in entries.offsets[:: len(entries.offsets) // _SAMPLES + 1].tolist():
        try:
            fde = section.fde(offset)
            if fde.program[1] - fde.program[0] > _PROGRAM_MAX:
                continue
            decoded = decode(section, fde)
        except BadCfiError:
            continue
        found.update(register for _, register, _ in decoded.changes if register < _REGISTERS_MAX)
    return found


def compile_section(
    section: CfiSection, entries: Entries, registers: Sequence[int], classes: dict[RowClass, int]
) -> PlainRows:
    """registers: which have a column, by DWARF number. classes: those of the CIEs are added."""
    n = len(entries.starts)
    at, end, cie_number = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    is_plain = np.zeros(n, np.bool_)
    aligns: list[tuple[int, int]] = []
    states: list[NDArray[np.int32]] = []
    for cie_offset, members in groups(entries.cies):
        cie = section.cie(cie_offset)
        cie_number[members] = len(states)
        at[members], end[members], is_plain[members] = section.programs(entries.offsets[members], cie)
        initial = _initial_state(section, Fde(0, 1, cie, cie.program[1:] * 2), registers, classes)
        is_small = 0 < cie.code_align <= ALIGN_MAX and abs(cie.data_align) <= ALIGN_MAX
        if initial is None or not is_small:
            is_plain[members] = False
        aligns.append((cie.code_align, cie.data_align) if is_small else (1, 1))
        states.append(np.zeros(FIRST_RULE + len(registers), np.int32) if initial is None else initial)
    column_of = np.zeros(_REGISTERS_MAX, np.uint8)
    column_of[list(registers)] = np.arange(len(registers)) + FIRST_RULE
    chosen = np.flatnonzero(is_plain)
    code_align, data_align = np.array(aligns, np.int64).reshape(-1, 2).T
    initial_states = np.array(states, np.int32).reshape(-1, FIRST_RULE + len(registers))
    rows = run(
        Programs(np.frombuffer(section.data, np.uint8), at[chosen], end[chosen], cie_number[chosen], code_align, data_align, initial_states, column_of)
    )  # fmt: skip
    is_plain[chosen] = rows.is_done
    function = chosen[rows.program]
    inside = rows.starts.view(np.uint64) < entries.lengths[function]
    function = function[inside]
    starts = entries.starts[function] + rows.starts[inside].view(np.uint64)
    return PlainRows(entries, function, starts, rows.line[inside], rows.states, is_plain)


def _initial_state(
    section: CfiSection, empty: Fde, registers: Sequence[int], classes: dict[RowClass, int]
) -> NDArray[np.int32] | None:
    """The row after a CIE's instructions; None if it does not fit the columns. empty: an FDE without any."""
    try:
        row = decode(section, empty).row(0, empty.cie, section.method)
    except BadCfiError:
        return None
    return None if row.cfa_expression else state_of(row, registers, classes)


def state_of(
    row: UnwindRow, registers: Sequence[int], classes: dict[RowClass, int]
) -> NDArray[np.int32] | None:
    """A row as columns, or None when it does not fit. Its class is added to `classes`."""
    columns = {register: column for column, register in enumerate(registers, FIRST_RULE)}
    state = np.full(FIRST_RULE + len(registers), ABSENT, np.int32)
    register = 0 if row.cfa_expression else row.cfa_register
    if not 0 <= register < _REGISTERS_MAX or abs(row.cfa_offset) >= 1 << 30:
        return None
    for rule in row.rules:
        column = columns.get(rule.register)
        if rule.kind in _PLAIN_MARKS:
            value = _PLAIN_MARKS[rule.kind]
        elif rule.kind is RuleKind.OFFSET and abs(rule.offset) < 1 << 30:
            value = rule.offset
        else:
            return None
        if column is None:
            return None
        state[column] = value
    kind = RowClass(row.return_register, row.is_signal, row.method, row.cfa_expression)
    number = classes.setdefault(kind, len(classes))
    state[:FIRST_RULE] = register, row.cfa_offset, row.is_return_signed, number
    return state


def row_of(state: NDArray[np.int32], classes: Sequence[RowClass], registers: Sequence[int]) -> UnwindRow:
    """The row that state_of() or the engine made columns of. registers: ascending."""
    register, offset, signed, number, *values = state.tolist()
    kind = classes[number]
    rules = tuple(
        [
            RegisterRule(
                number, _KIND_OF_MARK.get(value, RuleKind.OFFSET), 0 if value in _KIND_OF_MARK else value
            )
            for number, value in zip(registers, values, strict=True)
            if value != ABSENT
        ]
    )
    return UnwindRow(
        -1 if kind.cfa_expression else register,
        offset,
        kind.cfa_expression,
        rules,
        kind.return_register,
        kind.is_signal,
        kind.method,
        bool(signed),
    )
