"""The shim's own memory in a local process, which is not scanned: its words are no references of the program.

Its .bss has no name in /proc/PID/maps and may share a mapping with its successor, so program headers give its end.
The agent does the same (device/agent/process/shim_memory.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.sections import PT_LOAD
from memleak_android.host.errors import MemleakError
from memleak_android.unwind.maps import Mapping

_SHIM = "libmemleak.so"
_PAGE_BYTES = 4096
_BYTES_MAX = 64 << 20  # anything larger is not the shim, and would hide memory of the program

Bounds = tuple[int, int]


def shim_memory(pid: int, mappings: Sequence[Mapping]) -> list[Bounds]:
    """[start, end) of each copy of the shim, by address; without those whose file is unreadable."""
    firsts = (mapping for mapping in mappings if _SHIM in mapping.path and mapping.file_offset == 0)
    return [
        (mapping.start, mapping.start + extent)
        for mapping in firsts
        if (extent := _extent(pid, mapping.path))
    ]


def _extent(pid: int, path: str) -> int:
    try:
        segments = ElfFile(f"/proc/{pid}/root{path}").segments
    except (MemleakError, OSError):
        return 0
    end = max(
        (segment.vaddr + segment.memory_bytes for segment in segments if segment.type == PT_LOAD), default=0
    )
    return -(-end // _PAGE_BYTES) * _PAGE_BYTES if end <= _BYTES_MAX else 0


def outside(bounds: Sequence[Bounds], start: int, end: int) -> Iterator[Bounds]:
    """The parts of [start, end) outside of all the sorted bounds."""
    for low, high in bounds:
        if start < low < end:
            yield start, low
        if low < end and high > start:
            start = high
    if start < end:
        yield start, end
