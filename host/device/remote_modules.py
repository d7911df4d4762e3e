"""The files behind the mappings of a device's processes, pulled when a stack needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from memleak_android.host.device.parse import printable
from memleak_android.host.device.pulled_files import PulledFiles, RemoteFile
from memleak_android.host.device.target import Target
from memleak_android.host.device.zip_directory import StoredFile, find_stored
from memleak_android.host.errors import MemleakError
from memleak_android.unwind.maps import Mapping

_DELETED = " (deleted)"
_ZIP = b"PK\3\4"


class RemoteFiles:
    """Implements FileFinder for a device.

    vdso: that of its kernel, once somebody has asked the agent. refused: files that could not be had, one sentence each.
    """

    opens_early = False  # a session would pull every library that is mapped

    def __init__(self, target: Target, pulled: PulledFiles) -> None:
        self._target = target
        self._pulled = pulled
        self._looked: dict[tuple[str, str, int], RemoteFile | None] = {}
        self._stored: dict[tuple[str, int, int], StoredFile | None] = {}
        self.vdso = b""
        self.refused: list[str] = []

    def open(self, pid: int, mapping: Mapping) -> int | None:
        place = self.copy(pid, mapping)
        return os.open(place, os.O_RDONLY | os.O_CLOEXEC) if place else None

    def copy(self, pid: int, mapping: Mapping) -> Path | None:
        """A copy of the file on this machine; None where it cannot be had, and the reason is in `refused`."""
        try:
            return self._copy(pid, mapping)
        except (MemleakError, OSError) as error:
            self._refuse(mapping, error.message if isinstance(error, MemleakError) else str(error.strerror))
            return None

    def stored(self, pid: int, mapping: Mapping) -> StoredFile | None:
        """The library inside an archive that a mapping shows, None where it shows a file of its own."""
        try:
            file = self._look(pid, mapping)
            if file is None or not file.head.startswith(_ZIP):
                return None
            key = (file.path, file.inode, mapping.file_offset)
            if key not in self._stored:
                read = partial(self._pulled.read, file.path)
                self._stored[key] = find_stored(read, file.size, mapping.file_offset)
            return self._stored[key]
        except MemleakError as error:
            self._refuse(mapping, error.message)
            return None

    def _copy(self, pid: int, mapping: Mapping) -> Path | None:
        file = self._look(pid, mapping)
        if file is None:
            return None
        stored = self.stored(pid, mapping)
        if stored is not None:
            return self._pulled.copy_part(file, stored.offset, stored.size)
        return None if file.head.startswith(_ZIP) else self._pulled.copy(file)

    def _look(self, pid: int, mapping: Mapping) -> RemoteFile | None:
        key = (mapping.path, mapping.device, mapping.inode)
        if key not in self._looked:
            ways = list(self._ways(pid, mapping))
            file = self._pulled.look(ways) if ways else None
            if file is not None and mapping.inode and file.inode != mapping.inode:
                self._refuse(mapping, "another file has its place by now")
                file = None
            elif file is None and ways:
                self._refuse(mapping, "it cannot be read there")
            self._looked[key] = file
        return self._looked[key]

    def _ways(self, pid: int, mapping: Mapping) -> Iterator[str]:
        if not mapping.path.startswith("/"):
            return
        path = mapping.path.removesuffix(_DELETED)
        if self._target.has_root:
            yield f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
            yield f"/proc/{pid}/root{path}"
        yield path

    def _refuse(self, mapping: Mapping, reason: str) -> None:
        sentence = f"{printable(mapping.path)} could not be pulled: {reason}"
        if sentence not in self.refused:
            self.refused.append(sentence)
