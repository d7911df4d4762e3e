"""The call frame instructions of many FDEs at once: each round, every program runs one instruction.

Only what compilers write all day is done here, on rows of small numbers; a program with anything else (an
expression, a nested remember_state, a register without a column) is given back as not done, for cfi_program.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi.engine_rows import run_compiled

# In the column of a register, instead of an offset from the CFA:
ABSENT = -(1 << 31)  # no rule
UNDEFINED = ABSENT + 1
SAME_VALUE = ABSENT + 2
# Columns of a state. CLASS: what all rows of a CIE share, by a number of the caller's.
CFA_REGISTER, CFA_OFFSET, SIGNED, CLASS, FIRST_RULE = 0, 1, 2, 3, 4
_FEW = 48  # programs left: NumPy's overhead per round would exceed the scalar decoder's work
_PADDING_MAX = 8
_CELLS_MAX = 1 << 26  # rows times columns, bounds memory; libLLVM-14 has 850,000 rows of 11
ALIGN_MAX = 64  # of the factors: three bytes of LEB128 times this fit a column

_HASH_BITS = 17
_MULTIPLIERS = np.random.default_rng(0x6D656D6C).integers(1, 1 << 63, 256, np.uint64) | np.uint64(1)

_ROUNDS_MAX = 2048  # a few endless programs would make each round dear; libLLVM-14 needs 203

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Programs:
    """n FDEs. data: the section and 16 bytes behind it. at, end: their instructions in data.

    cie: number of the CIE of each. code_align, data_align: by CIE. initial: (CIEs, columns), the states that the
    programs begin with. column_of: by register number (128), -1 where there is none.
    """

    data: NDArray[np.uint8]
    at: Ints
    end: Ints
    cie: Ints
    code_align: Ints
    data_align: Ints
    initial: NDArray[np.int32]
    column_of: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of all programs that are done, by program, in order.

    starts: bytes from the function's start. line: which of the distinct `states`.
    """

    program: Ints
    starts: Ints
    line: Ints
    states: NDArray[np.int32]
    is_done: NDArray[np.bool_]


def run(programs: Programs) -> Rows:
    """Runs all of them; is_done is False for those that need the scalar decoder."""
    compiled = run_compiled(programs)
    return _Lockstep(programs).run() if compiled is None else Rows(*compiled)


def run_rounds(programs: Programs) -> Rows:
    """As run(), by NumPy."""
    return _Lockstep(programs).run()


class _Lockstep:
    def __init__(self, programs: Programs) -> None:
        self.p = programs
        n = len(programs.at)
        self.data = programs.data
        self.at = programs.at.copy()
        self.state = programs.initial[programs.cie]
        self.saved = self.state.copy()
        self.depth = np.zeros(n, np.int8)
        self.location = np.zeros(n, np.int64)
        self.rows = np.zeros(n, np.int64)
        self.failed = np.zeros(n, np.bool_)
        self.code_align = programs.code_align[programs.cie]
        self.data_align = programs.data_align[programs.cie]
        self.emitted: list[tuple[Ints, Ints, Ints, NDArray[np.int32]]] = []

    def run(self) -> Rows:
        end = self._without_padding()
        active = np.arange(len(self.at))
        left = _CELLS_MAX // self.state.shape[1]
        for _ in range(_ROUNDS_MAX):
            if len(active) < _FEW or left <= 0:
                break
            at = self.at[active]
            running = at < end[active]
            if not running.all():
                done = active[~running]
                self.fail(done[self.at[done] > self.p.end[done]])
                self.emit(done)
                active, at = active[running], at[running]
            before = len(self.emitted)
            self._step(active, at)
            left -= sum(len(program) for program, *_ in self.emitted[before:])
            if self.failed[active].any():
                active = active[~self.failed[active]]
        self.fail(active)
        return self._rows()

    def _without_padding(self) -> Ints:
        """Ends before the nops that fill entries up. An operand of zeros taken for one is read all the same."""
        end = self.p.end.copy()
        for _ in range(_PADDING_MAX):
            end -= (end > self.p.at) & (self.data[end - 1] == 0)
        return end

    def _step(self, active: Ints, at: Ints) -> None:
        opcodes = self.data[at]
        kinds = _KINDS[opcodes]
        counts = np.bincount(kinds, minlength=len(_HANDLERS))
        for kind in np.flatnonzero(counts).tolist():
            if counts[kind] == len(active):
                _HANDLERS[kind](self, active, at, opcodes)
            else:
                chosen = np.flatnonzero(kinds == kind)
                _HANDLERS[kind](self, active[chosen], at[chosen], opcodes[chosen])

    def fail(self, which: Ints) -> None:
        self.failed[which] = True

    def emit(self, which: Ints) -> None:
        """The row that ends at this location."""
        self.emitted.append((which, self.rows[which], self.location[which], self.state.take(which, axis=0)))
        self.rows[which] += 1

    def advance(self, which: Ints, after: Ints, delta: Ints) -> None:
        self.at[which] = after
        moved = delta * self.code_align[which]
        if (delta == 0).any():
            which, moved = which[delta > 0], moved[delta > 0]
        self.emit(which)
        self.location[which] += moved

    def uleb(self, which: Ints, at: Ints) -> tuple[Ints, Ints]:
        """(values, offsets behind), up to 3 bytes; longer ones fail."""
        value = self.data[at].astype(np.int64)
        after = at + 1
        long = np.flatnonzero(value > 127)
        if len(long):
            place = at[long]
            second, third = (self.data[place + i].astype(np.int64) for i in (1, 2))
            is_three = second > 127
            self.fail(which[long[is_three & (third > 127)]])
            value[long] = (
                value[long] & 0x7F | (second & 0x7F) << 7 | np.where(is_three, (third & 0x7F) << 14, 0)
            )
            after[long] += 1 + is_three
        return value, after

    def register(self, which: Ints, at: Ints) -> Ints:
        """One-byte register numbers; longer ones fail."""
        number = self.data[at].astype(np.int64)
        self.fail(which[number > 127])
        return number & 0x7F

    def set_rule(self, which: Ints, registers: Ints, values: Ints) -> None:
        columns = self.p.column_of[registers]
        self.fail(which[columns < 0])
        self.state[which, columns] = values  # what failed spoils its own state only

    def _rows(self) -> Rows:
        """Rows in the order of programs: each goes where its program's rows begin."""
        kept = np.where(self.failed, 0, self.rows)
        first = np.cumsum(kept) - kept
        empty = np.empty(0, np.int64)
        self.emitted.append((empty, empty, empty, self.p.initial[:0]))
        which, number, location = (np.concatenate([block[i] for block in self.emitted]) for i in range(3))
        states = np.concatenate([block[3] for block in self.emitted])
        good = ~self.failed[which]
        if not good.all():
            which, number, location, states = which[good], number[good], location[good], states[good]
        distinct, line = distinct_rows(states)
        places = first[which] + number
        starts, lines = np.empty(len(which), np.int64), np.empty(len(which), np.int64)
        starts[places] = location
        lines[places] = line
        return Rows(np.repeat(np.arange(len(kept)), kept), starts, lines, states[distinct], ~self.failed)


def distinct_rows(keys: NDArray[np.int32]) -> tuple[Ints, Ints]:
    """(one position for each distinct row, for each row the number of its equal among those)."""
    n = len(keys)
    mixed = np.zeros(n, np.uint64)
    for column, multiplier in zip(keys.T, _MULTIPLIERS, strict=False):
        mixed += column.astype(np.uint64) * multiplier
    slots = (mixed >> np.uint64(64 - _HASH_BITS)).view(np.int64)
    of_slot = np.empty(1 << _HASH_BITS, np.int64)
    of_slot[slots] = np.arange(n)  # of several rows for one slot any may stay
    chosen = of_slot[slots]
    other = np.flatnonzero((keys[chosen] != keys).any(axis=1))
    if len(other):  # two kinds of rows for one slot
        _, position, inverse = np.unique(keys[other], axis=0, return_index=True, return_inverse=True)
        chosen[other] = other[position[inverse.reshape(-1)]]
    is_chosen = chosen == np.arange(n)
    number = np.cumsum(is_chosen) - 1
    return np.flatnonzero(is_chosen), number[chosen]


_Handler = Callable[[_Lockstep, Ints, Ints, NDArray[np.uint8]], None]


def _not_done(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.fail(which)


def _advance(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.advance(which, at + 1, (opcodes & 0x3F).astype(np.int64))


def _advance_bytes(size: int) -> _Handler:
    def handler(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
        delta = m.data[at + 1].astype(np.int64)
        for i in range(1, size):
            delta |= m.data[at + 1 + i].astype(np.int64) << 8 * i
        m.advance(which, at + 1 + size, delta)

    return handler


def _offset(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    value, m.at[which] = m.uleb(which, at + 1)
    m.set_rule(which, (opcodes & 0x3F).astype(np.int64), value * m.data_align[which])


def _offset_extended(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    value, m.at[which] = m.uleb(which, at + 2)
    m.set_rule(which, m.register(which, at + 1), value * m.data_align[which])


def _restore(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.at[which] = at + 1
    registers = (opcodes & 0x3F).astype(np.int64)
    m.set_rule(which, registers, m.p.initial[m.p.cie[which], m.p.column_of[registers]].astype(np.int64))


def _marker(value: int) -> _Handler:
    def handler(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
        m.at[which] = at + 2
        m.set_rule(which, m.register(which, at + 1), np.full(len(which), value, np.int64))

    return handler


def _remember_state(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.at[which] = at + 1
    m.fail(which[m.depth[which] != 0])
    m.depth[which] = 1
    m.saved[which] = m.state[which]


def _restore_state(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.at[which] = at + 1
    m.fail(which[m.depth[which] != 1])
    m.depth[which] = 0
    m.state[which] = m.saved[which]


def _def_cfa(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.state[which, CFA_REGISTER] = m.register(which, at + 1)
    m.state[which, CFA_OFFSET], m.at[which] = m.uleb(which, at + 2)


def _def_cfa_register(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.state[which, CFA_REGISTER] = m.register(which, at + 1)
    m.at[which] = at + 2


def _def_cfa_offset(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.state[which, CFA_OFFSET], m.at[which] = m.uleb(which, at + 1)


def _args_size(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    _, m.at[which] = m.uleb(which, at + 1)


def _nop(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.at[which] = at + 1


def _negate_ra_state(m: _Lockstep, which: Ints, at: Ints, opcodes: NDArray[np.uint8]) -> None:
    m.at[which] = at + 1
    m.state[which, SIGNED] ^= 1


_BY_OPCODE: dict[int, _Handler] = {
    0x00: _nop,
    0x02: _advance_bytes(1),
    0x03: _advance_bytes(2),
    0x04: _advance_bytes(4),
    0x05: _offset_extended,
    0x07: _marker(UNDEFINED),
    0x08: _marker(SAME_VALUE),
    0x0A: _remember_state,
    0x0B: _restore_state,
    0x0C: _def_cfa,
    0x0D: _def_cfa_register,
    0x0E: _def_cfa_offset,
    0x2C: _negate_ra_state,
    0x2D: _negate_ra_state,
    0x2E: _args_size,
}
_HANDLERS: list[_Handler] = [_not_done, _advance, _offset, _restore, *_BY_OPCODE.values()]
_KINDS = np.zeros(256, np.int64)
_KINDS[0x40:0x80], _KINDS[0x80:0xC0], _KINDS[0xC0:] = 1, 2, 3
for _kind, _opcode in enumerate(_BY_OPCODE, 4):
    _KINDS[_opcode] = _kind
