"""From samples to stacks, a bounded number at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data.container import PerfData, open_perf_data
from memleak_android.host.perf_data.layout import Ints, SampleColumns, read_samples
from memleak_android.host.perf_data.order import SampleOrder, put_in_order
from memleak_android.host.perf_data.records import forget_pages
from memleak_android.unwind.arch import Arch, arm32, arm64, i386, x86_64
from memleak_android.unwind.trace import SampleBatch

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
