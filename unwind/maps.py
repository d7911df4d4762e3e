"""Mapping and AddressSpace: the files mapped into a process at one instant."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

from memleak_android.unwind.arch.base import Arch

_ADDRESS_BITS_MIN = 39  # the smallest user address space of Android and Linux on arm64
_HOLES_MAX = 4  # between two segments; linkers leave one


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps (proc(5)): [start, end) holds `path` from `file_offset` on.

    is_symfile: the file describes this code by its addresses in the process (simpleperf's files of JIT-compiled
    code); it is not the mapped memory itself.
    """

    start: int
    end: int
    permissions: str  # "r-xp"
    file_offset: int
    path: str  # "" = anonymous; a trailing " (deleted)" is kept
    device: str = "00:00"
    inode: int = 0
    is_symfile: bool = False

    @property
    def is_executable(self) -> bool:
        return "x" in self.permissions

    @property
    def is_hole(self) -> bool:
        """Reserved by the linker between two segments of a library."""
        return not self.path and not self.file_offset and self.permissions.startswith("---")


class AddressSpace:
    """Mappings of one process at one instant, sorted by start, without overlap."""

    def __init__(self, mappings: Iterable[Mapping]) -> None:
        self.mappings: tuple[Mapping, ...] = tuple(sorted(mappings, key=lambda m: m.start))
        self._starts = [m.start for m in self.mappings]

    def find(self, address: int) -> Mapping | None:
        i = bisect_right(self._starts, address) - 1
        if i >= 0 and address < self.mappings[i].end:
            return self.mappings[i]
        return None

    def signature_mask(self, arch: Arch) -> int:
        """Bits of a return address that may hold a signature: of arch.signature_mask those above all mappings.

        The last mapping counts, too: the kernel's page for uprobes ends where addresses do.
        """
        last = self.mappings[-1].end - 1 if self.mappings else 0
        return arch.signature_mask & ~((1 << max(last.bit_length(), _ADDRESS_BITS_MIN)) - 1)

    def neighbour(self, mapping: Mapping, step: int) -> Mapping | None:
        """The next mapping (step 1) or the previous one (-1) if it maps the same file; holes are skipped."""
        i = bisect_right(self._starts, mapping.start) - 1 + step
        for _ in range(_HOLES_MAX):
            if 0 <= i < len(self.mappings) and self.mappings[i].is_hole:
                i += step
        if mapping.path and 0 <= i < len(self.mappings) and self.mappings[i].path == mapping.path:
            return self.mappings[i]
        return None


def layered(lower: Iterable[Mapping], upper: Iterable[Mapping] = ()) -> AddressSpace:
    """An address space of mappings that may overlap: `upper` before `lower`, else the one that begins first."""
    tops = _apart(upper)
    starts = [m.start for m in tops]
    placed = list(tops)
    for mapping in _apart(lower):
        at = mapping.start
        for i in range(max(bisect_right(starts, at) - 1, 0), len(tops)):
            top = tops[i]
            if top.start >= mapping.end:
                break
            if at < top.start:
                placed.append(_part(mapping, at, top.start))
            at = max(at, top.end)
        if at < mapping.end:
            placed.append(_part(mapping, at, mapping.end))
    return AddressSpace(placed)


def _apart(mappings: Iterable[Mapping]) -> list[Mapping]:
    apart: list[Mapping] = []
    end = 0
    for mapping in sorted(mappings, key=lambda m: m.start):
        if mapping.end > end:
            apart.append(_part(mapping, max(mapping.start, end), mapping.end))
            end = mapping.end
    return apart


class Layout:
    """Mappings without overlap, sorted by start, under change."""

    def __init__(self, mappings: Iterable[Mapping] = ()) -> None:
        self.mappings: list[Mapping] = []
        self._starts: list[int] = []
        for mapping in sorted(mappings, key=lambda m: m.start):
            self.lay(mapping)

    def copy(self) -> Layout:
        made = Layout()
        made.mappings, made._starts = self.mappings.copy(), self._starts.copy()
        return made

    def covered(self, new: Mapping) -> list[Mapping]:
        """The mappings that `new` overlaps."""
        first, last = self._range(new)
        return self.mappings[first:last]

    def lay(self, new: Mapping, known: dict[Mapping, Mapping] | None = None) -> None:
        """Replaces what `new` covers, as mmap(2) with MAP_FIXED does. known: makes equal mappings one object."""
        first, last = self._range(new)
        pieces = [new]
        for old in self.mappings[first:last]:
            if old.start < new.start:
                pieces.insert(0, _part(old, old.start, new.start))
            if old.end > new.end:
                pieces.append(_part(old, new.end, old.end))
        self.mappings[first:last] = [known.setdefault(p, p) for p in pieces] if known is not None else pieces
        self._starts[first:last] = [piece.start for piece in pieces]

    def _range(self, new: Mapping) -> tuple[int, int]:
        first = bisect_left(self._starts, new.start)
        if first and self.mappings[first - 1].end > new.start:
            first -= 1
        return first, bisect_left(self._starts, new.end)


def _part(mapping: Mapping, start: int, end: int) -> Mapping:
    if (start, end) == (mapping.start, mapping.end):
        return mapping
    moved = 0 if mapping.is_symfile else start - mapping.start
    return replace(mapping, start=start, end=end, file_offset=mapping.file_offset + moved)
