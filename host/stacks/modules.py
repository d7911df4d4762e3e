"""The files of mappings: found while the process exists, opened once, read when first needed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.console import one_line
from memleak_android.host.elf.zip_directory import StoredFile
from memleak_android.host.profile.runtime_sites import ANONYMOUS, is_generated
from memleak_android.host.stacks.file_identities import FileIdentity
from memleak_android.host.symbols.symbolizer import ResolvedFrame
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.errors import UnwindError
from memleak_android.unwind.file_reading import contents, open_regular
from memleak_android.unwind.maps import Mapping

_MAPPED_FROM = 256 << 20  # bytes; a copy of a smaller file survives that its owner rebuilds it
_OPEN_FILES_MAX = 700  # stays below the usual limit of 1024 descriptors
DELETED = " (deleted)"
VDSO = "[vdso]"
_ADDRESS_END = 2**64


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A module under the path it is mapped as. data is empty and module None where the file cannot be used.

    bias: address minus vaddr, if recorded; None = it follows from the file.
    """

    path: str
    build_id: str
    data: memoryview = field(repr=False)
    module: Module | None = field(repr=False)
    bias: int | None = None

    def vaddr_of(self, mapping: Mapping, address: int) -> int:
        """The vaddr of an address in a mapping of this file; its file offset where the file cannot be read."""
        if self.bias is not None:
            return (address - self.bias) & (2**64 - 1)
        if self.module is None:
            return address - mapping.start + mapping.file_offset
        return self.module.vaddr_of(mapping, address) & (2**64 - 1)


@dataclass(frozen=True, slots=True)
class ScriptModule(ModuleFile, ABC):
    """Of frames whose vaddrs stand for functions that no file names."""

    @abstractmethod
    def resolve(self, vaddrs: NDArray[np.uint64]) -> list[tuple[ResolvedFrame, ...]]:
        """For each vaddr its function."""


class FileFinder(Protocol):
    """Finds the file of a process's mapping; only a regular file that is the mapped one.

    opens_early: open files as soon as they are mapped, not when a stack needs them.
    vdso: of the processes' kernel, b"" = unknown. refused: a sentence for each file that could not be read.
    """

    vdso: bytes
    refused: list[str]

    @property
    def opens_early(self) -> bool: ...

    def open(self, pid: int, mapping: Mapping) -> int | None:
        """A descriptor of the file; of the stored file alone where the mapping is a part of an archive."""

    def stored(self, pid: int, mapping: Mapping) -> StoredFile | None:
        """The file inside an archive (an APK) that is mapped; None where a whole file is mapped."""


class GeneratedNames(Protocol):
    """Names that compilers give the code that they generate. module: of its frames."""

    @property
    def module(self) -> ScriptModule: ...

    def begin_batch(self) -> None:
        """Before the addresses of a batch are asked for: names may have come since the last."""

    def vaddr(self, pid: int, address: int) -> int | None: ...


class LocalFiles:
    """Files of processes on this machine.

    is_running: the processes exist, so /proc/PID can be read. Otherwise only the path is left, and the file there is used
    if it still has the mapped inode.
    """

    opens_early = True

    def __init__(self, is_running: bool, vdso: bytes = b"") -> None:
        self._is_running = is_running
        self.vdso = vdso
        self.refused: list[str] = []

    def stored(self, pid: int, mapping: Mapping) -> StoredFile | None:
        return None  # nothing here maps libraries out of archives

    def open(self, pid: int, mapping: Mapping) -> int | None:
        for path, is_by_address in self._paths(pid, mapping):
            descriptor = _open_regular(path)
            if descriptor is None:
                continue
            if not mapping.inode or os.fstat(descriptor).st_ino == mapping.inode:
                return descriptor
            if is_by_address and _base_name(os.readlink(f"/proc/self/fd/{descriptor}")) == _base_name(
                mapping.path
            ):
                return descriptor
            os.close(descriptor)
        return None

    def _paths(self, pid: int, mapping: Mapping) -> Iterator[tuple[str, bool]]:
        if not mapping.path.startswith("/"):
            return
        path = mapping.path.removesuffix(DELETED)
        if self._is_running:
            # The mapped file itself even if deleted or replaced, but needs CAP_CHECKPOINT_RESTORE (proc(5)). Another library
            # may be mapped there by now; on overlayfs the file's own inode number is not the mapping's.
            yield f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}", True
            yield f"/proc/{pid}/root{path}", False
        yield path, False


def _base_name(path: str) -> str:
    return path.removesuffix(DELETED).rpartition("/")[2]


def _open_regular(path: str | Path) -> int | None:
    try:
        return open_regular(path)
    except (OSError, ValueError):
        return None


def own_vdso() -> bytes:
    """The kernel's vdso, which is the same in every process of one architecture."""
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
            for line in maps:
                if line.rstrip().endswith(VDSO):
                    start, end = (int(part, 16) for part in line.split()[0].split("-"))
                    memory.seek(start)
                    return memory.read(end - start) or b""
    except OSError:
        pass
    return b""


_Key = tuple[str, str, int, int]


class ModuleFiles:
    """The modules of a session by number. Each file is opened once.

    tables: the disk cache of decoded unwind rules; None = no cache. jit: names of generated code.
    """

    def __init__(
        self, finder: FileFinder, tables: TableCache | None = None, jit: GeneratedNames | None = None
    ) -> None:
        self.files: list[ModuleFile] = []
        self._tables = tables
        self._finder = finder
        self._jit = jit
        self._numbers: dict[_Key, int] = {}
        self._descriptors: dict[_Key, int] = {}

    def note(self, pid: int, mapping: Mapping) -> None:
        """Opens the file of an executable mapping now, because the process may end."""
        if not self._finder.opens_early:
            return
        key = _key(mapping)
        if (
            not mapping.is_executable
            or is_generated(mapping.path)
            or key in self._descriptors
            or key in self._numbers
        ):
            return
        if len(self._descriptors) < _OPEN_FILES_MAX:
            descriptor = self._finder.open(pid, mapping)
            if descriptor is not None:
                self._descriptors[key] = descriptor

    def number(self, pid: int, mapping: Mapping) -> int | None:
        """The index in `files` of a mapping's file; None for memory without a file."""
        if (not mapping.path.startswith("/") and mapping.path != VDSO) or is_generated(mapping.path):
            return None
        stored = self._finder.stored(pid, mapping) if mapping.path != VDSO else None
        key = _key(mapping, stored)
        if key not in self._numbers:
            self._numbers[key] = len(self.files)
            file = _load(mapping.path, self._data(pid, mapping, key), stored)
            if self._tables is not None and file.module is not None:
                self._tables.serve(file.module)
            self.files.append(file)
        return self._numbers[key]

    def generated(self, mapping: Mapping) -> int | None:
        """The index in `files` of the entry for generated code; None for other memory."""
        path = mapping.path or ANONYMOUS
        if not mapping.is_executable or not is_generated(path):
            return None
        key = (path, "", 0, 0)
        return (
            self._numbers[key]
            if key in self._numbers
            else self.put(ModuleFile(path, "", memoryview(b""), None))
        )

    def begin_batch(self) -> None:
        """Before the stacks of a batch are resolved."""
        if self._jit:
            self._jit.begin_batch()

    def named(self, pid: int, address: int) -> tuple[int, int] | None:
        """The index in `files`, and the vaddr, of generated code whose compiler has named it."""
        vaddr = self._jit.vaddr(pid, address) if self._jit else None
        if self._jit is None or vaddr is None:
            return None
        module = self._jit.module
        number = self._numbers.get((module.path, "", 0, 0))
        return self.put(module) if number is None else number, vaddr

    def put(self, file: ModuleFile) -> int:
        """Adds a file without a mapping, replacing one with the same path; returns its index in `files`."""
        number = self._numbers.setdefault((file.path, "", 0, 0), len(self.files))
        self.files[number : number + 1] = [file]
        return number

    def identities(self) -> list[FileIdentity]:
        """Identities of the opened files that have a build-id. Another thread may open more meanwhile."""
        found = []
        for (path, device, inode, offset), number in list(self._numbers.items())[: len(self.files)]:
            file = self.files[number]
            if file.build_id and path != VDSO:
                name = file.path.removeprefix(f"{path}!/") if file.path != path else ""
                size = len(file.data) if name else 0
                found.append(FileIdentity(path, device, inode, file.build_id, offset, size, name))
        return found

    @property
    def refused(self) -> list[str]:
        """A sentence for each file that stacks needed and that could not be read."""
        return self._finder.refused

    def peek(self, pid: int, mapping: Mapping) -> memoryview:
        """The bytes of a mapping's file, which does not become one of `files`; b"" = it cannot be read."""
        key = _key(mapping)
        if key in self._numbers:
            return self.files[self._numbers[key]].data
        kept = self._descriptors.get(key)
        descriptor = self._finder.open(pid, mapping) if kept is None else os.dup(kept)
        return _contents(descriptor, mapping.path, [])

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _data(self, pid: int, mapping: Mapping, key: _Key) -> memoryview:
        if mapping.path == VDSO:
            return memoryview(self._finder.vdso)
        descriptor = self._descriptors.pop(key, None)
        if descriptor is None:
            descriptor = self._finder.open(pid, mapping)
        return _contents(descriptor, mapping.path, self._finder.refused)


def _contents(descriptor: int | None, path: str, refused: list[str]) -> memoryview:
    """The bytes of a file, which is closed; b"" = it was not opened, or is among `refused` now."""
    if descriptor is None:
        return memoryview(b"")
    try:
        return contents(descriptor, path, _MAPPED_FROM)
    except OSError as error:
        refused.append(f"{one_line(path)} could not be read: {error.strerror}")
        return memoryview(b"")
    finally:
        os.close(descriptor)


def _key(mapping: Mapping, stored: StoredFile | None = None) -> _Key:
    device = mapping.device if mapping.inode else ""
    return mapping.path, device, mapping.inode, stored.offset if stored else 0


def _load(path: str, data: memoryview, stored: StoredFile | None = None) -> ModuleFile:
    """stored: `data` is this part of the archive at `path`; named as Android's linker names it."""
    path = f"{path}!/{stored.name}" if stored else path
    if data:
        try:
            module = Module.from_bytes(data, path)
        except UnwindError:
            return ModuleFile(path, "", data, None)
        module.elf_offset = stored.offset if stored else 0
        return ModuleFile(path, module.build_id, data, module)
    return ModuleFile(path, "", data, None)


def reopen(path: str, build_id: str, copies: Iterable[Path] = ()) -> ModuleFile:
    """A module of a finished recording, from the first file that still has its build-id; else without data.

    copies: paths to try after its own, which for a device's module is not a file of this machine.
    """
    for candidate in chain[str | Path]((path.removesuffix(DELETED),), copies):
        descriptor = _open_regular(candidate)
        if descriptor is None:
            continue
        try:
            found = _load(path, contents(descriptor, path, _MAPPED_FROM))
        except OSError:
            continue
        finally:
            os.close(descriptor)
        if found.module is not None and found.build_id == build_id:
            return found
    return ModuleFile(path, build_id, memoryview(b""), None)


class LinkedModules(ModuleFiles):
    """Files from the MODULES block: objects with path, start, bias and build_id.

    A file that is missing or has changed has no names of its own, but vaddrs and a build-id, by which --symbols finds it.
    copies: other paths of files with a build-id.
    """

    def __init__(self, recorded: Sequence[dict[str, Any]], copies: Callable[[str], Iterable[Path]]) -> None:
        super().__init__(LocalFiles(is_running=False))
        self._copies = copies
        self._recorded = sorted(
            (row for row in recorded if _is_sound(row)), key=lambda row: int(row["start"])
        )
        self._starts = [int(row["start"]) for row in self._recorded]
        self._opened: dict[int, int] = {}

    def number(self, pid: int, mapping: Mapping) -> int | None:
        """The index in `files` of the module that a mapping is part of; None for memory without a file."""
        index = bisect_right(self._starts, mapping.start) - 1
        while index >= 0 and self._recorded[index]["path"] != mapping.path:
            index -= 1
        if index < 0:
            return None
        if index not in self._opened:
            self._opened[index] = len(self.files)
            self.files.append(self._open(self._recorded[index]))
        return self._opened[index]

    def _open(self, recorded: dict[str, Any]) -> ModuleFile:
        file = reopen(recorded["path"], recorded["build_id"], self._copies(recorded["build_id"]))
        return replace(file, bias=recorded["bias"])


def _is_sound(recorded: dict[str, Any]) -> bool:
    numbers = [recorded.get("start"), recorded.get("bias")]
    return all(type(number) is int and 0 <= number < _ADDRESS_END for number in numbers) and all(
        isinstance(recorded.get(name), str) for name in ("path", "build_id")
    )
