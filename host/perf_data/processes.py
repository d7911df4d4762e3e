"""Mappings by process and time, from MMAP, MMAP2, COMM, FORK and EXIT records in order of time.

A mapping of free addresses is added to the current image, because no code ran there before. A mapping that replaces
another one, exec and fork start a new image.
"""

import struct
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data import records
from memleak_android.host.perf_data.records import Area
from memleak_android.unwind.maps import AddressSpace, Layout, Mapping

_EXEC = 1 << 13  # misc of COMM: the name changed by exec (kernel commit 82b897782d10, v3.16)
_DATA = 1 << 13  # misc of MMAP: not executable
_HAS_BUILD_ID = 1 << 14  # misc of MMAP2
_KERNEL_PID = 0xFFFF_FFFF
BUILD_ID = "build-id"  # Mapping.device of a mapping whose inode is an index into build_ids
_ADDRESS_END = 1 << 64


_MAPPINGS_MAX = 1 << 17  # of a process; the kernel's own limit is half of it (sysctl vm.max_map_count)
_COPIED_MAX = 1 << 24  # mappings in all images: bounds the cost of forks and replaced mappings


@dataclass(slots=True)
class _Image:
    """The layout of a process since a rank. is_shared: a forked process has the same layout."""

    since: int
    layout: Layout
    is_shared: bool = False


def _matters(new: Mapping, covered: list[Mapping]) -> bool:
    """Tests whether code changes. perf does not record munmap, so data addresses are reused without notice."""
    return any((old.is_executable or new.is_executable) and old != new for old in covered)


class Processes:
    """Built from records in order of time; `rank` is a record's index in that order.

    spaces: the address spaces numbered so far.
    lost: samples that the kernel dropped.
    build_ids: indexed by the inode of a mapping whose device is BUILD_ID.
    """

    def __init__(self, sample_pids: NDArray[np.uint32], sample_ranks: NDArray[np.int64]) -> None:
        order = np.lexsort((sample_ranks, sample_pids))
        pids, first = np.unique(sample_pids[order], return_index=True)
        ranks = np.split(sample_ranks[order], first[1:])  # of no samples one part
        self._ranks = dict(zip(pids.tolist(), ranks, strict=False))
        self._copied = 0
        self._known: dict[Mapping, Mapping] = {}
        self.spaces: list[AddressSpace] = [AddressSpace([])]
        self.pids: list[int] = [0]
        self.lost = 0
        self.build_ids: list[str] = [""]
        self._images: dict[int, list[_Image]] = {}
        self._space_of: dict[int, int] = {}  # by id of an image
        self._space_by_content: dict[tuple[int, ...], int] = {}  # by the ids of its mappings
        self._names: dict[int, tuple[list[int], list[str]]] = {}  # by tid: ranks, names

    def add(self, area: Area, number: int, kind: int, rank: int) -> None:
        """Applies one record; a record that is too short is skipped."""
        content, misc = bytes(area.record(number)), int(area.heads[number]) >> 32 & 0xFFFF
        try:
            if kind in (records.MMAP, records.MMAP2):
                self._add_mapping(content, misc, rank, is_second=kind == records.MMAP2)
            elif kind == records.COMM:
                self._add_name(content, misc, rank)
            elif kind == records.FORK:
                self._add_fork(content, rank)
            elif kind == records.LOST:
                self.lost += struct.unpack_from("<QQ", content)[1]
            elif kind == records.LOST_SAMPLES:
                self.lost += struct.unpack_from("<Q", content)[0]
        except struct.error:
            return

    def spaces_at(self, pids: NDArray[np.uint32], ranks: NDArray[np.int64]) -> NDArray[np.int32]:
        """The index in `spaces` for each (process, rank); 0, which is empty, for unknown processes."""
        found = np.zeros(len(pids), np.int32)
        for pid in np.unique(pids).tolist():
            images = self._images.get(pid)
            if images:
                own = np.flatnonzero(pids == pid)
                at = np.searchsorted([image.since for image in images], ranks[own], "right") - 1
                numbers = {i: self._number(pid, images[i]) for i in np.unique(np.maximum(at, 0)).tolist()}
                found[own] = [numbers[max(i, 0)] for i in at.tolist()]
        return found

    def name_at(self, tid: int, rank: int) -> str:
        """comm of a thread; ":TID" if no record names it, as perf prints."""
        since, names = self._names.get(tid, ([], []))
        at = bisect_left(since, rank) - 1
        return names[max(at, 0)] if names else f":{tid}"

    def _number(self, pid: int, image: _Image) -> int:
        number = self._space_of.get(id(image))
        if number is None:
            content = tuple(map(id, image.layout.mappings))
            number = self._space_by_content.setdefault(content, len(self.spaces))
            if number == len(self.spaces):
                self.spaces.append(AddressSpace(image.layout.mappings))
                self.pids.append(pid)
            self._space_of[id(image)] = number
        return number

    def _own_layout(self, pid: int, rank: int, *, is_new: bool) -> Layout:
        """The layout of a process, to be changed. is_new: samples before `rank` shall not see that."""
        images = self._images.setdefault(pid, [_Image(0, Layout())])
        image = images[-1]
        is_new = is_new and self._has_samples(pid, image.since, rank)
        if is_new or image.is_shared:
            self._copied += len(image.layout.mappings)
            if self._copied > _COPIED_MAX:
                raise RecordingError("the recording maps code over code too often", "record fewer processes")
            copy = image.layout.copy()
            if is_new:
                images.append(_Image(rank, copy))
                return copy
            image.layout, image.is_shared = copy, False
        return image.layout

    def _has_samples(self, pid: int, begin: int, end: int) -> bool:
        ranks = self._ranks.get(pid)
        if ranks is None:
            return False
        first = int(np.searchsorted(ranks, begin))
        return first < len(ranks) and int(ranks[first]) < end

    def _add_mapping(self, content: bytes, misc: int, rank: int, *, is_second: bool) -> None:
        pid, _, start, length, offset = struct.unpack_from("<IIQQQ", content)
        permissions, device, inode, name = "rw-p" if misc & _DATA else "r-xp", "00:00", 0, content[32:]
        if is_second:
            bits = struct.unpack_from("<I", content, 56)[0]
            permissions = "".join(c if bits & b else "-" for c, b in (("r", 1), ("w", 2), ("x", 4))) + "p"
            device, inode = self._file(content[32:56], misc)
            name = content[64:]
        if pid == _KERNEL_PID or not length or start + length > _ADDRESS_END:
            return
        path = name.split(b"\0")[0].decode("utf-8", "replace")
        new = Mapping(start, start + length, permissions, offset, path, device, inode)
        layout = self._own_layout(pid, rank, is_new=False)
        if _matters(new, layout.covered(new)):
            layout = self._own_layout(pid, rank, is_new=True)
        layout.lay(new, self._known)
        if len(layout.mappings) > _MAPPINGS_MAX:
            raise RecordingError(f"process {pid} has more than {_MAPPINGS_MAX} mappings", "record again")

    def _file(self, content: bytes, misc: int) -> tuple[str, int]:
        """(device, inode) of the file, or (BUILD_ID, index)."""
        if misc & _HAS_BUILD_ID:
            build_id = content[4 : 4 + min(content[0], 20)].hex()
            if build_id not in self.build_ids:
                self.build_ids.append(build_id)
            return BUILD_ID, self.build_ids.index(build_id)
        major, minor, inode = struct.unpack_from("<IIQ", content)
        return f"{major:02x}:{minor:02x}", inode

    def _add_name(self, content: bytes, misc: int, rank: int) -> None:
        pid, tid = struct.unpack_from("<II", content)
        self._rename(tid, rank, content[8:].split(b"\0")[0].decode("utf-8", "replace"))
        if misc & _EXEC:
            self._images.setdefault(pid, []).append(_Image(rank, Layout()))

    def _add_fork(self, content: bytes, rank: int) -> None:
        pid, parent, tid, parent_tid = struct.unpack_from("<IIII", content)
        since, names = self._names.get(parent_tid, ([], []))
        if since:
            self._rename(tid, rank, names[-1])
        if pid != parent and parent in self._images:
            image = self._images[parent][-1]
            image.is_shared = True
            self._images.setdefault(pid, []).append(_Image(rank, image.layout, is_shared=True))

    def _rename(self, tid: int, rank: int, name: str) -> None:
        since, names = self._names.setdefault(tid, ([], []))
        since.append(rank)
        names.append(name)
