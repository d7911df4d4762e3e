"""Captured memory, read as numbers: stack slices and other regions of a process."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.errors import UnreadableMemoryError


class MemoryRegions:
    """Regions of one process's memory: (address, data). If two overlap, the one that begins last is read."""

    def __init__(self, regions: Iterable[tuple[int, memoryview]]) -> None:
        self._regions = sorted(regions, key=lambda region: region[0])
        self._starts = [start for start, _ in self._regions]

    def bytes_at(self, address: int, size: int) -> memoryview:
        """At most `size` bytes from `address` on, within one region."""
        for i in range(bisect_right(self._starts, address) - 1, -1, -1):
            start, data = self._regions[i]
            if address < start + len(data):
                return data[address - start : address - start + size]
        return memoryview(b"")

    def region_of(self, address: int) -> tuple[int, memoryview]:
        """(start, data) of the region that contains an address, else of the next one, else (address, b"")."""
        for start, data in self._regions:
            if address < start + len(data):
                return start, data
        return address, memoryview(b"")

    def image(self, start: int, size: int) -> bytes:
        """[start, start + size) up to the last known byte; unknown bytes are 0."""
        image = bytearray()
        for first, data in self._regions:
            low, high = max(first, start), min(first + len(data), start + size)
            if low < high:
                image.extend(bytes(max(high - start - len(image), 0)))
                image[low - start : high - start] = data[low - first : high - first]
        return bytes(image)

    def read(self, address: int, size: int) -> int:
        data = self.bytes_at(address, size)
        if len(data) < size:
            raise UnreadableMemoryError(address)
        return int.from_bytes(data, "little")


@dataclass(frozen=True, slots=True)
class StackSlice:
    """Captured stack bytes, beginning at `address`. extra: memory outside the slice."""

    address: int
    data: memoryview
    arch: Arch
    extra: MemoryRegions | None = None

    def relative(self, address: int) -> int:
        """address minus the slice's start, signed, modulo the size of an address; without tags."""
        bits = self.arch.address_bits
        distance = (address - self.address) & ((1 << bits) - 1)
        return distance - (1 << bits) if distance >> (bits - 1) else distance

    def read(self, address: int, size: int) -> int:
        """An unsigned little-endian number. Raises UnreadableMemoryError."""
        at = self.relative(address)
        if 0 <= at <= len(self.data) - size:
            return int.from_bytes(self.data[at : at + size], "little")
        if self.extra is None:
            raise UnreadableMemoryError(address)
        return self.extra.read(address & ((1 << self.arch.address_bits) - 1), size)
