"""Where the shim itself lies in a local process: what stands there refers to no block for the program.

Its .bss has no name in /proc/PID/maps, and may be one mapping with what follows: its program headers tell where it ends.
The agent's own search does the same (device/agent/process/shim_memory.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.sections import PT_LOAD
from memleak_android.host.errors import MemleakError
from memleak_android.unwind.maps import Mapping

_SHIM = "libmemleak.so"
_PAGE_BYTES = 4096
_BYTES_MAX = 64 << 20  # what is larger is no shim, and would hide memory of the program

Bounds = tuple[int, int]


def shim_memory(pid: int, mappings: Sequence[Mapping]) -> list[Bounds]:
    """[start, end) of each of the shim's libraries, by address; without those whose file cannot be read any more."""
    firsts = (one for one in mappings if _SHIM in one.path and one.file_offset == 0)
    return [(one.start, one.start + extent) for one in firsts if (extent := _extent(pid, one.path))]


def _extent(pid: int, path: str) -> int:
    try:
        segments = ElfFile(f"/proc/{pid}/root{path}").segments
    except (MemleakError, OSError):
        return 0
    end = max((one.vaddr + one.memory_bytes for one in segments if one.type == PT_LOAD), default=0)
    return -(-end // _PAGE_BYTES) * _PAGE_BYTES if end <= _BYTES_MAX else 0


def outside(bounds: Sequence[Bounds], start: int, end: int) -> Iterator[Bounds]:
    """The parts of [start, end) that are in none of the bounds, which are sorted."""
    for low, high in bounds:
        if start < low < end:
            yield start, low
        if low < end and high > start:
            start = high
    if start < end:
        yield start, end
