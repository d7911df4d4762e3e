"""The ELF files of a recording, from this machine or --symbols folders, if they are the recorded ones."""

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from memleak_android.host.perf_data.container import PerfData
from memleak_android.host.perf_data.processes import BUILD_ID, Processes
from memleak_android.host.stacks.modules import VDSO, ModuleFile, own_vdso
from memleak_android.host.symbols.symbol_locations import read_build_id
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.errors import BadElfError, UnwindError
from memleak_android.unwind.maps import Mapping

_INDEXED_MAX = 200_000  # files of --symbols folders
_MEMORY = ("//anon", "/anon_hugepage", "/dev/zero", "/SYSV", "/memfd:")  # pseudo-paths: not files


class RecordedFiles:
    """A ModuleSource.

    A file is used if it has the recorded build-id or, without one, did not change since the recording. A --symbols
    folder is searched for the whole path, then for the name. Files are mapped, not read: an unwinder needs a twentieth
    of a library of 100 MB.

    tables: the cache of decoded unwind rules, or None.
    notes: one sentence for each refused file.
    """

    def __init__(
        self,
        recording: PerfData,
        processes: Processes,
        symbol_dirs: Sequence[Path] = (),
        tables: TableCache | None = None,
    ) -> None:
        self.notes: list[str] = []
        self.recording = recording
        self.files: list[ModuleFile] = []
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._processes = processes
        self._folders = tuple(symbol_dirs)
        self._tables = tables
        self._by_name: dict[str, list[Path]] | None = None
        self._recorded_at = os.stat(recording.path).st_mtime

    def module(self, space: int, mapping: Mapping) -> Module | None:
        number = self.number(mapping)
        return None if number is None else self.files[number].module

    def number(self, mapping: Mapping) -> int | None:
        """The index in `files` of the mapped file; None for anonymous memory."""
        if mapping.path != VDSO and (not mapping.path.startswith("/") or mapping.path.startswith(_MEMORY)):
            return None
        key = (mapping.path, mapping.device, mapping.inode)
        if key not in self._numbers:
            self._numbers[key] = len(self.files)
            self.files.append(self._load(mapping))
        return self._numbers[key]

    def _load(self, mapping: Mapping) -> ModuleFile:
        module = self._open_vdso() if mapping.path == VDSO else self._open(mapping)
        if module is None:
            return ModuleFile(mapping.path, self._build_id(mapping), memoryview(b""), None)
        if self._tables is not None:
            self._tables.serve(module)
        return ModuleFile(mapping.path, module.build_id, module.data, module)

    def _open_vdso(self) -> Module | None:
        """Opens this machine's vdso: all processes of one kernel share it."""
        data = own_vdso() if self.recording.release in ("", platform.release()) else b""
        try:
            module = Module.from_bytes(data, VDSO) if data else None
        except UnwindError:
            return None
        wanted = self.recording.build_ids.get(VDSO, "")
        return module if module is not None and wanted in ("", module.build_id) else None

    def _open(self, mapping: Mapping) -> Module | None:
        build_id = self._build_id(mapping)
        for path in self._candidates(mapping.path.removesuffix(" (deleted)")):
            reason = self._reason_against(path, build_id)
            if reason is None:
                try:
                    return Module.from_path(path)
                except UnwindError as error:
                    reason = str(error)
            if reason:
                self.notes.append(f"{path} is not used: {reason}")
        return None

    def _build_id(self, mapping: Mapping) -> str:
        if mapping.device == BUILD_ID and mapping.inode < len(self._processes.build_ids):
            return self._processes.build_ids[mapping.inode]
        return self.recording.build_ids.get(mapping.path, "")

    def _candidates(self, path: str) -> Iterator[Path]:
        for folder in self._folders:
            yield folder / PurePosixPath(path).relative_to("/")
        if self._folders:
            yield from self._indexed().get(PurePosixPath(path).name, ())
        yield Path(path)

    def _indexed(self) -> dict[str, list[Path]]:
        if self._by_name is None:
            self._by_name = {}
            left = _INDEXED_MAX
            for folder in self._folders:
                for parent, below, names in os.walk(folder):
                    below.sort()
                    for name in names[: max(left, 0)]:
                        self._by_name.setdefault(name, []).append(Path(parent) / name)
                    left -= len(names)
        return self._by_name

    def _reason_against(self, path: Path, build_id: str) -> str | None:
        """Why a file is not the recorded one; "" if it does not exist, None if it matches."""
        try:
            if not path.is_file():
                return ""
            if build_id:
                found = read_build_id(path)
                return None if found == build_id else f"its build-id is {found or 'missing'}, not {build_id}"
            is_given = any(path.is_relative_to(folder) for folder in self._folders)
            if path.stat().st_mtime > self._recorded_at and not is_given:
                return "it changed after the recording"
        except BadElfError as error:
            return error.reason
        except (OSError, ValueError) as error:
            return str(error)
        return None
