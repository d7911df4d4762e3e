"""Samples of one event as columns. The offset of each field is found for all samples at once.

The order of fields is that of perf_output_sample (kernel/events/core.c). Offsets are words of 8 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.perf_data.event import HEAD, Event, SampleType
from memleak_android.host.perf_data.records import Area

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
_READ_TOTALS, _READ_ID, _READ_GROUP, _READ_LOST = 0b11, 1 << 2, 1 << 3, 1 << 4
_BRANCH_HW_INDEX, _BRANCH_COUNTERS = 1 << 17, 1 << 19
_BRANCH_WORDS = 3


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """n samples. Offsets are word indices in their area.

    period: 1 if it was not recorded.
    chain: offset of the callchain behind its length.
    abi: 0 none, 1 of a 32-bit process, 2 of a 64-bit process.
    registers: offset of the first register.
    stack, stack_bytes: the slice, as far as it was filled.
    """

    ip: Words
    period: Words
    cpu: NDArray[np.uint32]
    chain: Ints
    chain_words: Ints
    abi: NDArray[np.uint8]
    registers: Ints
    stack: Ints
    stack_bytes: Ints

    def part(self, chosen: Ints) -> SampleColumns:
        return SampleColumns(*(getattr(self, field.name)[chosen] for field in fields(self)))


class _Cursor:
    """An offset in each sample. Offsets beyond a sample stay at its end, where all words read as 0."""

    def __init__(self, area: Area, numbers: Ints) -> None:
        self._words = area.words
        self.at = (area.offsets[numbers] >> 3) + 1
        self._end = (area.offsets[numbers] + area.sizes[numbers]) >> 3

    def word(self) -> Words:
        """Reads a word and moves past it."""
        inside = self.at < self._end
        value = self._words[np.where(inside, self.at, 0)]
        value[~inside] = 0
        self.at = np.minimum(self.at + 1, self._end)
        return value

    def run(self, words: Words) -> tuple[Ints, Ints]:
        """Offset and count of so many words; moves past them. The count is 0 if they do not fit."""
        left = (self._end - self.at).astype(np.uint64)
        count = np.where(words <= left, words, 0).astype(np.int64)
        begin = self.at
        self.at = np.where(words <= left, self.at + count, self._end)
        return begin, count


def read_samples(area: Area, numbers: Ints, event: Event) -> SampleColumns:
    """Reads samples of one event by their record numbers."""
    cursor = _Cursor(area, numbers)
    zero = np.zeros(len(numbers), np.uint64)
    none = np.zeros(len(numbers), np.int64)
    head = {field: cursor.word() for field in HEAD if event.sample_type & field}
    if event.sample_type & SampleType.READ:
        _skip_read(cursor, event.read_format)
    chain = cursor.run(cursor.word()) if event.sample_type & SampleType.CALLCHAIN else (none, none)
    if event.sample_type & SampleType.RAW:
        _skip_raw(cursor)
    if event.sample_type & SampleType.BRANCH_STACK:
        _skip_branches(cursor, event.branch_sample_type)
    abi, registers = zero, none
    if event.sample_type & SampleType.REGS_USER:
        abi = cursor.word()
        registers, found = cursor.run(
            np.where(abi != 0, np.uint64(event.registers.bit_count()), np.uint64(0))
        )
        abi = np.where(found > 0, abi, 0)
    stack, filled = _stack(cursor) if event.sample_type & SampleType.STACK_USER else (none, none)
    return SampleColumns(
        head.get(SampleType.IP, zero),
        head.get(SampleType.PERIOD, zero + np.uint64(1)),
        head.get(SampleType.CPU, zero).astype(np.uint32),
        *chain,
        np.minimum(abi, 3).astype(np.uint8),
        registers,
        stack,
        filled,
    )


def _skip_read(cursor: _Cursor, form: int) -> None:
    values = 1 + bool(form & _READ_ID) + bool(form & _READ_LOST)
    totals = (form & _READ_TOTALS).bit_count()
    if form & _READ_GROUP:
        members = np.minimum(cursor.word(), 1 << 32)
        cursor.run(members * np.uint64(values) + np.uint64(totals))
    else:
        cursor.run(np.full(len(cursor.at), values + totals, np.uint64))


def _skip_raw(cursor: _Cursor) -> None:
    """A length of 4 bytes, then as many bytes, padded."""
    length = cursor.word() & np.uint64(0xFFFF_FFFF)
    cursor.run((length + np.uint64(4 + 7)) // np.uint64(8) - np.uint64(1))


def _skip_branches(cursor: _Cursor, form: int) -> None:
    """Count, hardware ring index, branches, their counters (kernel commit 571d91dcadfa, v6.8)."""
    branches = np.minimum(cursor.word(), 1 << 32)
    if form & _BRANCH_HW_INDEX:
        cursor.word()
    cursor.run(branches * np.uint64(_BRANCH_WORDS + bool(form & _BRANCH_COUNTERS)))


def _stack(cursor: _Cursor) -> tuple[Ints, Ints]:
    """Reserved bytes, the slice, and the filled bytes."""
    room = cursor.word()
    begin, words = cursor.run(room // np.uint64(8))
    filled = np.where(room != 0, cursor.word(), 0)
    return begin, np.minimum(filled, (8 * words).astype(np.uint64)).astype(np.int64)
