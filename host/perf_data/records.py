"""Offsets of the records of a perf.data, found in one walk over their headers."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MMAP, LOST, COMM, EXIT, FORK, SAMPLE, MMAP2, LOST_SAMPLES = 1, 2, 3, 4, 7, 9, 10, 13
ATTRIBUTE, TRACING_DATA, BUILD_ID, AUXTRACE, EVENT_UPDATE, FEATURE, COMPRESSED, COMPRESSED2 = 64, 66, 67, 71, 78, 80, 81, 83  # fmt: skip
_LONGER = frozenset({TRACING_DATA, AUXTRACE})  # followed by bytes that the header's size does not count
_PACKED = frozenset({COMPRESSED, COMPRESSED2})  # they contain records: unaligned_records.py
_PART_BYTES = 16 << 20  # walked before its pages are dropped


@dataclass(frozen=True, slots=True)
class Area:
    """Contiguous records.

    data: starts at a multiple of 8, as the kernel writes records.
    offsets: bytes from the start of `data`.
    heads: type in the low 32 bits, then misc, then size.
    left: bytes at the end without a record that this walk understands.
    """

    data: memoryview
    words: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    heads: NDArray[np.uint64]
    left: int

    @property
    def types(self) -> NDArray[np.uint32]:
        return self.heads.astype(np.uint32)

    @property
    def misc(self) -> NDArray[np.uint16]:
        return (self.heads >> np.uint64(32)).astype(np.uint16)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return (self.heads >> np.uint64(48)).astype(np.int64)

    def parts(self) -> Iterator[Area]:
        """Yields the records in at least one part, and drops the pages of earlier parts."""
        first, end = 0, -1
        while end < len(self.offsets):
            limit = int(self.offsets[first]) + _PART_BYTES if len(self.offsets) else 0
            end = max(int(np.searchsorted(self.offsets, limit)), first + 1)
            yield Area(self.data, self.words, self.offsets[first:end], self.heads[first:end], 0)
            forget_pages(self.data)
            first = end

    def record(self, number: int) -> memoryview:
        """The record without its header."""
        begin = int(self.offsets[number])
        return self.data[begin + 8 : begin + int(self.heads[number] >> np.uint64(48))]


def find_records(data: memoryview, begin: int, end: int) -> Area:
    """Finds the records in [begin, end), up to the first with an unaligned size. begin: a multiple of 8."""
    end = min(end, len(data))
    usable = data[: end & ~7]
    words = np.frombuffer(usable, "<u8")
    offsets, heads = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    at = begin
    while True:
        part, following = _walk(usable, at)
        offsets.append(part)
        heads.append(words[part >> 3])
        forget_pages(data)
        if following == at:
            return Area(data, words, np.concatenate(offsets), np.concatenate(heads), end - at)
        at = following


def _walk(data: memoryview, at: int) -> tuple[NDArray[np.int64], int]:
    """The next offsets, and the offset at which to continue."""
    sizes, kinds = data.cast("H"), data.cast("I")
    end, limit = len(data), at + _PART_BYTES
    found: list[int] = []
    while at + 8 <= end and at < limit:
        size = sizes[(at >> 1) + 3]
        if kinds[at >> 2] in _LONGER:
            size += bytes_behind(data, at, size)
        if size < 8 or size & 7 or at + size > end or kinds[at >> 2] in _PACKED:
            break
        found.append(at)
        at += size
    return np.array(found, np.int64), at


def bytes_behind(data: memoryview, at: int, size: int) -> int:
    """Bytes behind a record: AUXTRACE's trace, TRACING_DATA's tracepoint formats, padded to 8."""
    kind = int.from_bytes(data[at : at + 4], "little")
    if kind not in _LONGER or size < 16 - 4 * (kind == TRACING_DATA) or at + size > len(data):
        return 0
    length = struct.unpack_from("<Q" if kind == AUXTRACE else "<I", data, at + 8)[0]
    return (int(length) + 7) & ~7


def forget_pages(data: memoryview) -> None:
    """Drops the pages of a mapped file, so that memory does not grow with its size."""
    if isinstance(data.obj, mmap.mmap):
        data.obj.madvise(mmap.MADV_DONTNEED)
