"""The files behind the mappings of a device's processes, pulled when a stack needs them."""

from functools import partial
from pathlib import Path

from memleak_android.host.console import one_line
from memleak_android.host.elf.zip_directory import StoredFile, find_stored
from memleak_android.host.errors import DeviceError, MemleakError, TargetError
from memleak_android.host.machine.adb.pulled_files import PulledFiles, RemoteFile
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.target import AppUser, Target
from memleak_android.unwind.file_reading import open_regular
from memleak_android.unwind.maps import Mapping

_DELETED = " (deleted)"
_ZIP = b"PK\3\4"


class RemoteFiles:
    """Implements FileFinder for a device. Files are read as root or the shell, then as the app, then from memory.

    vdso: of the device's kernel, once pulled.
    run_as: the app, if the shell may read less than the app.
    images: reads a process's memory, None = impossible.
    refused: unavailable modules, one sentence each.
    """

    opens_early = False  # a session would pull every mapped library

    def __init__(self, target: Target, pulled: PulledFiles) -> None:
        self._target = target
        self._pulled = pulled
        self._found: dict[_Key, RemoteFile | None] = {}
        self._reasons: dict[_Key, str] = {}  # why a file is unavailable
        self._stored: dict[tuple[str, int, int], StoredFile | None] = {}
        self.vdso = b""
        self.run_as: AppUser | None = None
        self.images: ReadingAgent | None = None
        self.refused: list[str] = []
        self._failure: DeviceError | None = None  # of the last copy

    def open(self, pid: int, mapping: Mapping) -> int | None:
        path = self.copy(pid, mapping)
        return open_regular(path) if path else None

    def copy(self, pid: int, mapping: Mapping) -> Path | None:
        """A copy of the file on this machine; None if it is unavailable, with the reason in `refused`."""
        self._failure = None
        try:
            return self._copy(pid, mapping)
        except (MemleakError, OSError):  # its process may have ended, and /proc/PID paths with it
            self._found.pop(_key(mapping), None)
        try:
            return self._copy(pid, mapping)
        except (MemleakError, OSError) as error:
            self._failure = error if isinstance(error, DeviceError) else None
            self._refuse(mapping, error.message if isinstance(error, MemleakError) else str(error.strerror))
            return None

    def needed(self, pid: int, mapping: Mapping, why: str) -> Path:
        """As copy(), for a required file. Raises TargetError, or DeviceError if the device is gone."""
        path = self.copy(pid, mapping)
        if path is not None:
            return path
        if self._failure is not None:
            raise self._failure
        reason = self.refused[-1] if self.refused else f"{one_line(mapping.path)} could not be pulled"
        raise TargetError(reason, why)

    def stored(self, pid: int, mapping: Mapping) -> StoredFile | None:
        """The library inside an archive that a mapping shows, None if it shows a whole file."""
        try:
            file = self._find(pid, mapping)
            if file is None or not file.head.startswith(_ZIP):
                return None
            key = (file.path, file.inode, mapping.file_offset)
            if key not in self._stored:
                self._stored[key] = find_stored(
                    partial(self._pulled.read, file), file.size, mapping.file_offset
                )
            return self._stored[key]
        except MemleakError as error:
            self._refuse(mapping, error.message)
            return None

    def _copy(self, pid: int, mapping: Mapping) -> Path | None:
        file = self._find(pid, mapping)
        if file is None:
            return self._image(pid, mapping) if mapping.path.startswith("/") else None
        stored = self.stored(pid, mapping)
        if stored is not None:
            return self._pulled.copy_part(file, stored.offset, stored.size)
        return None if file.head.startswith(_ZIP) else self._pulled.copy(file)

    def _image(self, pid: int, mapping: Mapping) -> Path | None:
        closed = "" if self._target.has_root or self.run_as else " without root or a debuggable app"
        reason = self._reasons.get(_key(mapping), f"it cannot be read there{closed}")
        if self.images is None:
            self._refuse(mapping, reason)
            return None
        path = self._pulled.temporary_path()
        complaint = self.images.read_image(pid, mapping, path)
        if not complaint:
            return path
        self._refuse(mapping, f"{reason}, nor the memory of process {pid} ({complaint})")
        return None

    def _find(self, pid: int, mapping: Mapping) -> RemoteFile | None:
        key = _key(mapping)
        if key not in self._found:
            file = self._readable(pid, mapping)
            if file is not None and mapping.inode and file.inode != mapping.inode:
                self._reasons[key] = "another file has replaced it"
                file = None
            self._found[key] = file
        return self._found[key]

    def _readable(self, pid: int, mapping: Mapping) -> RemoteFile | None:
        if not mapping.path.startswith("/"):
            return None
        path = mapping.path.removesuffix(_DELETED)
        by_process = f"/proc/{pid}/root{path}"
        if self._target.has_root:
            memory = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
            return self._pulled.find([memory, by_process, path])
        file = self._pulled.find([path])
        return file or (self._pulled.find([by_process, path], self.run_as) if self.run_as else None)

    def _refuse(self, mapping: Mapping, reason: str) -> None:
        sentence = f"{one_line(mapping.path)} could not be pulled: {reason}"
        if sentence not in self.refused:
            self.refused.append(sentence)


_Key = tuple[str, str, int]


def _key(mapping: Mapping) -> _Key:
    return mapping.path, mapping.device, mapping.inode
