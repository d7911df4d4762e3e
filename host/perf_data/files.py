"""The ELF files of a recording: on this machine or in --symbols folders, and only such as were mapped then."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from memleak_android.host.debug_files import read_build_id
from memleak_android.host.elf_sections import BadElf
from memleak_android.host.modules import ModuleFile, ModuleFiles, own_vdso
from memleak_android.host.perf_data.container import PerfData
from memleak_android.host.perf_data.processes import BUILD_ID, Processes
from memleak_android.unwind.maps import Mapping
from memleak_android.unwind.module import Module

_FILES_MAX = 200_000  # looked at in a --symbols folder


class RecordedFiles:
    """A ModuleSource. notes: files that are not those of the recording, one sentence each.

    A file is taken when it has the build-id that the recording tells; where that tells none, when it was not changed
    since. In a --symbols folder it lies under its whole path, or anywhere by its name.
    """

    def __init__(self, recording: PerfData, processes: Processes, symbol_dirs: Sequence[Path] = ()) -> None:
        self.notes: list[str] = []
        self.recording = recording
        self._processes = processes
        self._folders = tuple(symbol_dirs)
        self._by_name: dict[str, list[Path]] | None = None
        self._recorded_at = os.stat(recording.path).st_mtime
        is_this_kernel = recording.release in ("", platform.release())
        self._files = ModuleFiles(self, own_vdso() if is_this_kernel else b"")

    def module(self, space: int, mapping: Mapping) -> Module | None:
        number = self.number(mapping)
        return None if number is None else self.files[number].module

    def number(self, mapping: Mapping) -> int | None:
        """The position in `files` of what a mapping shows; None for memory that is no file's."""
        if mapping.path.startswith(("//anon", "/anon_hugepage", "/dev/zero", "/SYSV")):
            return None
        return self._files.number(0, mapping)

    @property
    def files(self) -> list[ModuleFile]:
        return self._files.files

    def open(self, pid: int, mapping: Mapping) -> int | None:
        """For ModuleFiles: the descriptor of the file behind a mapping."""
        build_id = self._build_id(mapping)
        for path in self._places(mapping.path.removesuffix(" (deleted)")):
            reason = self._reason_against(path, build_id)
            if reason is None:
                try:
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                except OSError as error:
                    reason = str(error.strerror)
            if reason:
                self.notes.append(f"{path} is not used: {reason}")
        return None

    def _build_id(self, mapping: Mapping) -> str:
        if mapping.device == BUILD_ID and mapping.inode < len(self._processes.build_ids):
            return self._processes.build_ids[mapping.inode]
        return self.recording.build_ids.get(mapping.path, "")

    def _places(self, path: str) -> list[Path]:
        inside = [folder / PurePosixPath(path).relative_to("/") for folder in self._folders]
        return [*inside, *self._indexed().get(PurePosixPath(path).name, ()), Path(path)]

    def _indexed(self) -> dict[str, list[Path]]:
        if self._by_name is None:
            self._by_name = {}
            left = _FILES_MAX
            for folder in self._folders:
                for place, _, names in os.walk(folder):
                    for name in names[: max(left, 0)]:
                        self._by_name.setdefault(name, []).append(Path(place) / name)
                    left -= len(names)
        return self._by_name

    def _reason_against(self, path: Path, build_id: str) -> str | None:
        """Why a file is not the recorded one; "" where there is none, None where nothing speaks against it."""
        try:
            if not path.is_file():
                return ""
            if build_id:
                found = read_build_id(path)
                return (
                    None
                    if found == build_id
                    else f"its build-id is {found or 'missing'}, recorded was {build_id}"
                )
            is_given = any(path.is_relative_to(folder) for folder in self._folders)
            if path.stat().st_mtime > self._recorded_at and not is_given:
                return "it was changed after the recording"
        except (OSError, BadElf, ValueError) as error:
            return str(error)
        return None
