"""Uses of a process's memory by its mappings (/proc/PID/smaps, proc_pid_smaps(5)), compared with the tracked bytes.

Memory that graphics drivers count outside of the mappings comes from Android's `dumpsys meminfo PID`: rows of the memtrack
HAL (frameworks/base ActivityThread.dumpMemInfoTable(), Debug.MemoryInfo.getOtherLabel()). The first number is Pss in kB.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.machine.parse import decimal
from memleak_android.host.profile.profile import OF_HEAP, MemoryUse

# The first pattern that matches a mapping's name. Names of Android: bionic's and ART's prctl(PR_SET_VMA), gralloc's
# devices; of glibc's with the tunable glibc.mem.decorate_maps.
_PARTS = (
    ("allocator", r"\[heap\]|\[anon:(libc_malloc|scudo:|GWP-ASan| glibc: malloc)"),
    ("java_heap", r"\[anon:dalvik-|/dev/ashmem/dalvik-|/memfd:jit-"),
    ("stacks", r"\[stack\]|\[anon:(stack_and_tls|thread stack| glibc: pthread stack)"),
    ("graphics", r"/dev/(kgsl|mali|dri/|nvidia|dma_heap)|/dmabuf|anon_inode:dmabuf"),
    ("tracer", r"/memfd:memleak|.*libmemleak\.so"),
    ("shared", r"/dev/shm/|/dev/ashmem|/memfd:|/SYSV|/dev/zero"),
    ("files", r"/"),
    ("anonymous", r"$|\[anon:\.bss\]"),
    ("other", r""),
)
DRIVERS = "driver_graphics"
SECOND_LIBC = "second_libc"  # a field of SESSION
_NAMES = (*(name for name, _ in _PARTS), DRIVERS)
_DRIVER_ROW = re.compile(r" *(?:EGL|GL|Other) mtrack +(\d{1,12})(?: .*)?")
PROCESSES_MAX = 16
NO_BLOCKS: NDArray[np.uint64] = np.empty(0, np.uint64)
_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _PARTS)
_LIBC_BEGINS = re.compile(r" 00000000 [0-9a-f:]+ \d+ +(/\S*/libc[.-]\S+)$", re.MULTILINE)  # proc(5); offset 0
_USED_LINE = re.compile(r"^(?:[0-9a-f]+-|[RP]ss:).*", re.MULTILINE)  # a sixth of them
_HEAD = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) \S{4} \S+ \S+ \d+ *(.*)")


@dataclass(slots=True)
class Mapping:
    """Addresses from start to end, its name, its part of memory, resident and proportional bytes."""

    start: int
    end: int
    name: str
    part: str
    rss: int = 0
    pss: int = 0


def memory_parts(
    mappings: Iterable[Mapping], blocks: NDArray[np.uint64] = NO_BLOCKS
) -> dict[str, tuple[int, int]]:
    """Resident and proportional bytes (shared pages divided among their users) by part.

    blocks: (n,) addresses of live allocations. A nameless mapping with a block in it belongs to the allocator: an arena of
    glibc, a large block, or the heap of an allocator that names no mappings.
    """
    found: dict[str, tuple[int, int]] = {}
    sorted_blocks = np.sort(blocks)
    for used in mappings:
        first = int(np.searchsorted(sorted_blocks, np.uint64(used.start)))
        holds = first < len(sorted_blocks) and int(sorted_blocks[first]) < used.end
        part = "allocator" if holds and used.part == "anonymous" else used.part
        rss, pss = found.get(part, (0, 0))
        found[part] = rss + used.rss, pss + used.pss
    return found


def driver_bytes(text: str) -> int:
    """The drivers' bytes in a `dumpsys meminfo PID`; 0 where it lists none."""
    rows = (_DRIVER_ROW.fullmatch(line) for line in text.splitlines())
    return sum(int(row[1]) * 1024 for row in rows if row)


def has_second_libc(text: str) -> bool:
    """Whether a C library is mapped twice, by maps or smaps: another namespace of the dynamic linker has its own."""
    libraries = _LIBC_BEGINS.findall(text)
    return len(libraries) > len({*libraries})


@lru_cache(1024)
def _part_of(name: str) -> str:
    return next(part for part, pattern in _PATTERNS if pattern.match(name))


def mappings_of(text: str) -> Iterator[Mapping]:
    """Of smaps. Malformed lines are skipped."""
    used: Mapping | None = None
    for line in _USED_LINE.findall(text):
        if head := _HEAD.fullmatch(line):
            if used:
                yield used
            used = Mapping(int(head[1], 16), int(head[2], 16), head[3], _part_of(head[3]))
            continue
        name, _, value = line.partition(":")
        amount = decimal(value.strip().removesuffix(" kB")) if name in ("Rss", "Pss") and used else None
        if used and amount is not None:
            setattr(used, name.lower(), amount * 1024)
    if used:
        yield used


def read_memory(recorded: Sequence[object], begin_ns: int) -> tuple[MemoryUse, ...]:
    """The valid ones of SESSION's objects about memory, at most PROCESSES_MAX. begin_ns: start of the session."""
    return tuple(use for each in recorded[:PROCESSES_MAX] if (use := _read_one(each, begin_ns)))


def _read_one(recorded: object, begin_ns: int) -> MemoryUse | None:
    if not isinstance(recorded, dict) or not isinstance(recorded.get("parts"), dict):
        return None
    numbers = [recorded.get(name) for name in ("pid", "timestamp_ns", "tracked")]
    if not all(is_size(number) for number in numbers):
        return None
    pid, timestamp_ns, tracked = (int(number or 0) for number in numbers)
    parts = tuple(_known_parts(recorded["parts"]))
    is_by_block = recorded.get("by_block") is True
    of_tracked = ("allocator",) if is_by_block else OF_HEAP
    beside = sum(resident for name, resident, _ in parts if name in of_tracked) - tracked
    caches = max(0, beside) if is_by_block else None
    return MemoryUse(pid, max(0, timestamp_ns - begin_ns), tracked, parts, caches, max(0, -beside))


def _known_parts(parts: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    for name in _NAMES:
        pair = parts.get(name)
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_size, pair)):
            yield name, pair[0], pair[1]


def is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
