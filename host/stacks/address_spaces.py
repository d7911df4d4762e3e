"""Epochs of a process's mappings: which file was mapped where at the time of an event.

A process's image begins at its start or exec. Its first /proc/PID/maps is the base for the whole image, including the
time before it was read. Mappings recorded later are applied to it in order of time. A fork continues the parent's
mappings of that moment.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.profile.runtime_sites import ANONYMOUS, is_generated
from memleak_android.host.wire.blocks import MAPPING_SHARED, ProcessEvent, Rows
from memleak_android.host.wire.payloads import Maps
from memleak_android.unwind.maps import AddressSpace, Layout, Mapping


class ProcessSpace(AddressSpace):
    """An address space with its pid, so that files can be found through /proc/PID."""

    def __init__(self, pid: int, mappings: Iterable[Mapping]) -> None:
        super().__init__(mappings)
        self.pid = pid


_ADDRESS_END = 2**64


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a process's mappings."""

    timestamp_ns: int
    kind: str  # "maps" | "mapping" | "fork" | "exec"
    maps: Maps | None = None
    mapping: Mapping | None = None
    parent: int = 0


def _identity(mapping: Mapping) -> tuple[str, int]:
    """Equal for mappings of one file at one load address."""
    return mapping.path.removesuffix(" (deleted)"), mapping.start - mapping.file_offset


def _contradicts(layout: Layout, new: Mapping) -> bool:
    """`new` replaces code of another file."""
    covered = layout.covered(new)
    return any(old.is_executable and old.path and _identity(old) != _identity(new) for old in covered)


def _with_generated(layout: Layout, generated: Iterable[Mapping]) -> list[Mapping]:
    """The mappings, and the generated code where no other code is."""
    made = layout.copy()
    for mapping in generated:
        code = [old for old in made.covered(mapping) if old.is_executable]
        for each in (mapping, *code):
            made.lay(each)
    return made.mappings


def _with_copied_text(mappings: list[Mapping]) -> list[Mapping]:
    """Nameless code between two pieces of one file, in the place of the piece that is missing there, is a copy of it: programs move
    their code to huge pages so.
    """
    made = mappings.copy()
    for i in range(1, len(mappings) - 1):
        before, code, after = mappings[i - 1 : i + 2]
        if not code.is_executable or not is_generated(code.path or ANONYMOUS):
            continue
        missing = replace(before, start=code.start, end=code.end, permissions=code.permissions)
        missing = replace(missing, file_offset=before.file_offset + before.end - before.start)
        is_between = before.path.startswith("/") and (before.end, code.end) == (code.start, after.start)
        if is_between and _identity(before) == _identity(missing) == _identity(after):
            made[i] = missing
    return made


def _repeats(change: _Change, last: _Change | None) -> bool:
    """The maps are the same as the last ones."""
    return (
        change.maps is not None
        and last is not None
        and last.maps is not None
        and change.maps.text == last.maps.text
    )


@dataclass(slots=True)
class _History:
    """The changes of one process in order of time."""

    changes: list[_Change] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def sort(self) -> None:
        self.changes.sort(key=lambda change: change.timestamp_ns)
        before = [None, *self.changes[:-1]]
        self.changes = [
            change for change, last in zip(self.changes, before, strict=True) if not _repeats(change, last)
        ]
        self.times = [change.timestamp_ns for change in self.changes]

    def first_maps(self, start: int) -> Maps | None:
        """The first maps of the image that begins with change `start`."""
        for change in self.changes[start:]:
            if change.kind == "exec":
                return None
            if change.kind == "maps":
                return change.maps
        return None


class AddressSpaces:
    """Address spaces by process and time, made only for the moments that are asked for."""

    def __init__(
        self, maps: Iterable[Maps], mappings: Iterable[tuple[Rows, list[str]]], processes: Iterable[Rows]
    ):
        self.spaces: list[ProcessSpace] = []
        self.parents: dict[int, int] = {}  # pid → the process that it was forked from
        self._histories: dict[int, _History] = {}
        self._by_epoch: dict[tuple[int, int], int] = {}
        self._parsed: dict[str, tuple[Mapping, ...]] = {}  # by the text of a Maps
        for each in maps:
            self._change(each.pid, _Change(each.timestamp_ns, "maps", maps=each))
        for rows, paths in mappings:
            for row, path in zip(rows, paths, strict=True):
                self._change(
                    int(row["pid"]),
                    _Change(int(row["timestamp_ns"]), "mapping", mapping=recorded_mapping(row, path)),
                )
        for rows in processes:
            self._add_processes(rows)
        for history in self._histories.values():
            history.sort()

    def index(self, pids: NDArray[np.uint32], timestamps_ns: NDArray[np.uint64]) -> NDArray[np.int32]:
        """For each (pid, time) the index of its address space in `spaces`."""
        result = np.empty(len(pids), np.int32)
        for pid in np.unique(pids).tolist():
            own = np.flatnonzero(pids == pid)
            wanted, inverse = np.unique(self._epochs(pid, timestamps_ns[own]), return_inverse=True)
            self._make_spaces(pid, [epoch for epoch in wanted.tolist() if (pid, epoch) not in self._by_epoch])
            result[own] = np.array([self._by_epoch[pid, epoch] for epoch in wanted.tolist()], np.int32)[
                inverse
            ]
        return result

    def images(self, pids: NDArray[np.uint32], timestamps_ns: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each (pid, time) a number. While it stays, no code was replaced by other code at the same address,
        so that equal addresses mean equal functions."""
        result = np.empty(len(pids), np.int64)
        for pid in np.unique(pids).tolist():
            own = np.flatnonzero(pids == pid)
            images = np.array([image for _, image in self._walk(pid, 0)], np.int64)
            result[own] = (pid << 32) + images[self._epochs(pid, timestamps_ns[own])]
        return result

    def _epochs(self, pid: int, timestamps_ns: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The number of changes before each time."""
        history = self._histories.get(pid, _History())
        return np.searchsorted(np.array(history.times, np.uint64), timestamps_ns, side="right")

    def _make_spaces(self, pid: int, epochs: list[int]) -> None:
        wanted = set(epochs)
        generated = self._generated(pid) if wanted else {}
        for epoch, (layout, image) in enumerate(self._walk(pid, 0) if wanted else ()):
            if epoch in wanted:
                self._by_epoch[pid, epoch] = len(self.spaces)
                self.spaces.append(
                    ProcessSpace(pid, _with_copied_text(_with_generated(layout, generated.get(image, ()))))
                )

    def _generated(self, pid: int) -> dict[int, tuple[Mapping, ...]]:
        """By image the generated code in its last maps: compilers make memory executable by mprotect(2), which is not announced."""
        changes = self._histories.get(pid, _History()).changes
        found = dict[int, tuple[Mapping, ...]]()
        for change, (_, image) in zip(changes, islice(self._walk(pid, 0), 1, None), strict=True):
            if change.maps is not None:
                mappings = self._parse(change.maps)
                found[image] = tuple(
                    m for m in mappings if m.is_executable and is_generated(m.path or ANONYMOUS)
                )
        return found

    def _walk(self, pid: int, depth: int) -> Iterator[tuple[Layout, int]]:
        """The layout before the first change of a process and after each, with the number of its image."""
        history, image = self._histories.get(pid, _History()), 0
        layout = self._ground(history, 0, depth)
        yield layout, image
        for number, change in enumerate(history.changes, 1):
            if change.maps is not None:
                mappings = self._parse(change.maps)
                image += any(_contradicts(layout, mapping) for mapping in mappings)
                layout = Layout(mappings)
            elif change.mapping is not None:
                image += _contradicts(layout, change.mapping)
                layout.lay(change.mapping)
            else:
                layout, image = self._ground(history, number, depth), image + 1
            yield layout, image

    def _ground(self, history: _History, begin: int, depth: int) -> Layout:
        change = history.changes[begin - 1] if begin else None
        if change is not None and change.kind == "fork" and depth < len(self._histories):
            parent = self._histories.get(change.parent, _History())
            epoch = bisect_right(parent.times, change.timestamp_ns)
            layout, _ = next(islice(self._walk(change.parent, depth + 1), epoch, None))
            if layout.mappings:
                return layout
        maps = history.first_maps(begin)
        return Layout(self._parse(maps) if maps else ())

    def _parse(self, maps: Maps) -> tuple[Mapping, ...]:
        if maps.text not in self._parsed:
            self._parsed[maps.text] = tuple(
                mapping for mapping in parse_maps(maps.text) if mapping.end <= _ADDRESS_END
            )
        return self._parsed[maps.text]

    def _add_processes(self, rows: Rows) -> None:
        for row in rows:
            pid, parent, event = int(row["pid"]), int(row["parent"]), int(row["event"])
            if event == ProcessEvent.FORK and pid != parent:
                self.parents[pid] = parent
                self._change(pid, _Change(int(row["timestamp_ns"]), "fork", parent=parent))
            elif event == ProcessEvent.EXEC:
                self._change(pid, _Change(int(row["timestamp_ns"]), "exec"))

    def _change(self, pid: int, change: _Change) -> None:
        self._histories.setdefault(pid, _History()).changes.append(change)


def recorded_mapping(row: np.void, path: str) -> Mapping:
    """The kernel's name of nameless memory (perf_event_mmap_event() in kernel/events/core.c) becomes that of its maps."""
    protection = int(row["protection"])
    letters = "".join(letter if protection & bit else "-" for letter, bit in (("r", 1), ("w", 2), ("x", 4)))
    device = f"{int(row['device_major']):02x}:{int(row['device_minor']):02x}"
    return Mapping(
        int(row["start"]),
        int(row["end"]),
        letters + ("s" if protection & MAPPING_SHARED else "p"),
        int(row["file_offset"]),
        "" if path == "//anon" else path,
        device,
        int(row["inode"]),
    )
