"""All records in order of time; and from samples to stacks, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data import records
from memleak_android.host.perf_data.container import PerfData, open_perf_data
from memleak_android.host.perf_data.event import Event, SampleType
from memleak_android.host.perf_data.layout import Ints, SampleColumns, read_samples
from memleak_android.host.perf_data.processes import Processes
from memleak_android.host.perf_data.records import Area, forget_pages
from memleak_android.unwind.arch import Arch, arm32, arm64, i386, x86_64
from memleak_android.unwind.trace import SampleBatch

_PROCESS_RECORDS = (
    records.MMAP,
    records.MMAP2,
    records.COMM,
    records.FORK,
    records.LOST,
    records.LOST_SAMPLES,
)


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """n samples in order of time.

    area, record: indices of the sample's record.
    rank: index among all records in order of time.
    event: index in PerfData.events.
    time_ns: 0 if times were not recorded.
    """

    area: NDArray[np.int32]
    record: NDArray[np.int64]
    rank: NDArray[np.int64]
    event: NDArray[np.int32]
    pid: NDArray[np.uint32]
    tid: NDArray[np.uint32]
    time_ns: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.rank)

    def part(self, begin: int, end: int) -> SampleOrder:
        return SampleOrder(*(getattr(self, field.name)[begin:end] for field in fields(self)))


def put_in_order(recording: PerfData) -> tuple[SampleOrder, Processes]:
    """Sorts the samples by time and builds the processes. Raises RecordingError if a sample's event is unknown."""
    area = np.repeat(
        np.arange(len(recording.areas), dtype=np.int32), [len(a.offsets) for a in recording.areas]
    )
    record = np.concatenate([np.arange(len(a.offsets)) for a in recording.areas])
    found = [_heads(part, recording.events) for area_ in recording.areas for part in area_.parts()]
    event, pid_tid, times, kinds = (np.concatenate(column) for column in zip(*found, strict=True))
    # Records that perf synthesizes at the start have no time and come first.
    order = np.argsort(times, kind="stable")
    is_sample = kinds[order] == records.SAMPLE
    rank = np.flatnonzero(is_sample)
    chosen = order[rank]
    samples = SampleOrder(
        area[chosen],
        record[chosen],
        rank,
        event[chosen],
        (pid_tid[chosen] & np.uint64(0xFFFF_FFFF)).astype(np.uint32),
        (pid_tid[chosen] >> np.uint64(32)).astype(np.uint32),
        times[chosen],
    )
    processes = Processes(samples.pid, samples.rank)
    for at in np.flatnonzero(np.isin(kinds[order], _PROCESS_RECORDS)).tolist():
        i = int(order[at])
        processes.add(recording.areas[area[i]], int(record[i]), int(kinds[i]), at)
    return samples, processes


_Heads = tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint32]]


def _heads(area: Area, events: list[Event]) -> _Heads:
    """Event, pid and tid, time, and type of each record."""
    kinds = area.types
    event = np.zeros(len(kinds), np.int32)
    pid_tid, times = np.zeros(len(kinds), np.uint64), np.zeros(len(kinds), np.uint64)
    is_sample = kinds == records.SAMPLE
    begin, end = area.offsets >> 3, (area.offsets + area.sizes) >> 3
    if len(events) > 1:
        event[is_sample] = _events_of(area, begin[is_sample], end[is_sample], events)
    for number, candidate in enumerate(events):
        own = np.flatnonzero(is_sample & (event == number))
        for column, head in ((pid_tid, SampleType.TID), (times, SampleType.TIME)):
            word = candidate.head_word(head)
            if word is not None:
                column[own] = _words(area, begin[own] + word, begin[own], end[own])
    other = np.flatnonzero(~is_sample & (kinds < records.ATTRIBUTE))
    back = events[0].trailer_word(SampleType.TIME)
    if back is not None:
        times[other] = _words(area, end[other] - back, begin[other], end[other])
    return event, pid_tid, times, kinds


def _words(
    area: Area, at: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """The words at `at`; 0 outside their records."""
    inside = (at > begin) & (at < end)
    value = area.words[np.where(inside, at, 0)] if len(at) else np.empty(0, np.uint64)
    value[~inside] = 0
    return value


def _events_of(
    area: Area, begin: NDArray[np.int64], end: NDArray[np.int64], events: list[Event]
) -> NDArray[np.int32]:
    """The event of each sample, by its id."""
    id_words = {event.head_word(SampleType.IDENTIFIER) or event.head_word(SampleType.ID) for event in events}
    id_word = id_words.pop()
    if id_words or id_word is None:
        raise RecordingError("the samples carry no event id", "record one event at a time")
    ids = np.array([identity for event in events for identity in event.ids], np.uint64)
    of_id = np.repeat(np.arange(len(events), dtype=np.int32), [len(event.ids) for event in events])
    order = np.argsort(ids, kind="stable")
    wanted = _words(area, begin + id_word, begin, end)
    if not len(ids):
        return np.zeros(len(begin), np.int32)
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    found: NDArray[np.int32] = np.where(ids[order][at] == wanted, of_id[order][at], 0)
    return found


_SAMPLES_MAX = 1 << 15  # at a time
_STACK_BYTES_MAX = 512 << 20  # at a time; of the file's pages, which are dropped afterwards
_X86 = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "ip", "flags", "cs", "ss", "ds", "es", "fs", "gs")
_X86_64 = (*_X86, *(f"r{n}" for n in range(8, 16)))
_ARM64 = (*(f"x{n}" for n in range(30)), "lr", "sp", "pc")
# For a 32-bit process the kernel uses the same numbers (arch/arm64/kernel/perf_regs.c).
_ARM32 = (*(f"r{n}" for n in range(16)),)
ABI_32, ABI_64 = 1, 2


@dataclass(frozen=True, slots=True)
class Machine:
    """By ABI, the architecture of a machine's processes and perf's names of its registers, in perf's order
    (arch/*/include/uapi/asm/perf_regs.h).
    """

    arches: dict[int, tuple[Arch, tuple[str, ...]]]

    def slots(self, abi: int, mask: int) -> Ints:
        """The slot of each register in a sample; -1 if our architecture lacks it. mask: the recorded registers."""
        arch, names = self.arches[abi]
        numbers = [n for n in range(64) if mask >> n & 1]
        return np.array([_slot(arch, names[n]) if n < len(names) else -1 for n in numbers], np.int64)


def _slot(arch: Arch, name: str) -> int:
    try:
        return arch.slot(name)
    except KeyError:
        return -1


def machine_of(uname: str, registers: int) -> Machine:
    """The machine by `uname -m`; if that is "", by the mask of registers. Raises RecordingError."""
    intel = (i386.ARCH, _X86)
    arm = (arm32.ARCH, _ARM32)
    if uname in ("x86_64", "amd64") or (not uname and registers >> 16 and not registers >> 24):
        return Machine({ABI_32: intel, ABI_64: (x86_64.ARCH, _X86_64)})
    if uname in ("aarch64", "arm64") or (not uname and registers >> 32):
        return Machine({ABI_32: arm, ABI_64: (arm64.ARCH, _ARM64)})
    if uname.startswith("arm") or (not uname and registers == 0xFFFF):
        return Machine({ABI_32: arm})
    if uname in ("i386", "i486", "i586", "i686", "x86") or not uname:
        return Machine({ABI_32: intel})
    raise RecordingError(
        f"the recording is of an unsupported machine: {uname}", "x86_64, arm64, arm32 and i386 are supported"
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Samples of one area, event and ABI. chosen: indices in the chunk."""

    chosen: Ints
    columns: SampleColumns
    batch: SampleBatch | None  # None: without registers and stack


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some samples in order of time, grouped by area, event and ABI."""

    order: SampleOrder
    space: NDArray[np.int32]
    groups: list[Group]


class SampleReader:
    """The samples of a recording, ready to be unwound."""

    def __init__(self, path: Path) -> None:
        self.recording: PerfData = open_perf_data(path)
        self.order, self.processes = put_in_order(self.recording)
        self._machines: dict[int, Machine] = {}

    @cached_property
    def events_with_stacks(self) -> list[int]:
        return [i for i, event in enumerate(self.recording.events) if event.has_stacks]

    def chunks(self) -> Iterator[Chunk]:
        for begin, end in self._bounds():
            yield self._chunk(self.order.part(begin, end))
            for area in self.recording.areas:
                forget_pages(area.data)

    def _bounds(self) -> Iterator[tuple[int, int]]:
        sizes = np.zeros(len(self.order), np.int64)
        for number, area in enumerate(self.recording.areas):
            own = np.flatnonzero(self.order.area == number)
            sizes[own] = area.sizes[self.order.record[own]]
        total = np.cumsum(sizes)
        begin = 0
        while begin < len(total):
            limit = (int(total[begin - 1]) if begin else 0) + _STACK_BYTES_MAX
            end = min(int(np.searchsorted(total, limit, "right")), begin + _SAMPLES_MAX)
            yield begin, max(end, begin + 1)
            begin = max(end, begin + 1)

    def _chunk(self, order: SampleOrder) -> Chunk:
        space = self.processes.spaces_at(order.pid, order.rank)
        groups = []
        kinds = order.area.astype(np.int64) << 32 | order.event
        for kind in np.unique(kinds).tolist():
            chosen = np.flatnonzero(kinds == kind)
            area, event = self.recording.areas[kind >> 32], self.recording.events[kind & 0xFFFF_FFFF]
            columns = read_samples(area, order.record[chosen], event)
            machine = self._machine(kind & 0xFFFF_FFFF)
            for abi in np.unique(columns.abi).tolist():
                own = np.flatnonzero(columns.abi == abi)
                part, indices = columns.part(own), chosen[own]
                batch = None
                if abi in machine.arches:
                    slots = machine.slots(abi, event.registers)
                    words = area.words
                    batch = _batch(machine.arches[abi][0], slots, words, part, space[indices])
                groups.append(Group(indices, part, batch))
        return Chunk(order, space, groups)

    def _machine(self, event: int) -> Machine:
        if event not in self._machines:
            registers = self.recording.events[event].registers
            self._machines[event] = (
                machine_of(self.recording.machine, registers) if registers else Machine({})
            )
        return self._machines[event]


def _batch(
    arch: Arch, slots: Ints, words: NDArray[np.uint64], columns: SampleColumns, space: NDArray[np.int32]
) -> SampleBatch:
    """Makes a batch without copying slices: the whole area is its stack_bytes."""
    shape = (len(columns.registers), len(arch.registers))
    registers, known = np.zeros(shape, np.uint64), np.zeros(shape, np.bool_)
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            registers[:, slot] = words[columns.registers + i]
            known[:, slot] = True
    if arch.word_bytes == 4:
        registers &= np.uint64(0xFFFF_FFFF)
    return SampleBatch(
        arch,
        registers,
        known,
        registers[:, arch.sp].copy(),
        8 * columns.stack,
        columns.stack_bytes,
        words.view(np.uint8),
        space,
        np.zeros(shape[0], np.bool_),
    )
