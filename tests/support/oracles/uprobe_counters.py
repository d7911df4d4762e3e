"""The kernel's own counters of uprobes, as an oracle: tracefs's uprobe_events and uprobe_profile."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from memleak_android.host.elf.dynamic import ElfFile

TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


@contextmanager
def mounted_tracefs() -> Iterator[Path]:
    """In a folder of its own, where the machine has not mounted it. Skips, with the reason, where it may not be."""
    folder = tempfile.mkdtemp()
    try:
        argv = ["mount", "-t", "tracefs", "nodev", folder]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"tracefs is not mounted, and cannot be: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        os.rmdir(folder)  # which a mounted file system would refuse


class UprobeCounters:
    """Counts entries of functions of one file, in whatever process, while it is open."""

    def __init__(self, program: Path, names: Sequence[str]) -> None:
        self._program = program
        self._names = names
        self._group = f"oracle{os.getpid()}"
        self._mounts = ExitStack()

    def __enter__(self) -> Self:
        found = [folder for folder in TRACEFS if (folder / "uprobe_events").exists()]
        self._tracefs = found[0] if found else self._mounts.enter_context(mounted_tracefs())
        elf = ElfFile(self._program)
        wanted = set(self._names)
        for symbol in elf.dynamic_functions(wanted) or elf.static_functions(wanted):
            offset = elf.file_offset(symbol.vaddr)
            assert offset is not None
            self._tell(f"p:{self._group}/{symbol.name} {self._program}:{offset:#x}")
        (self._tracefs / "events" / self._group / "enable").write_text("1")
        return self

    def counts(self) -> dict[str, int]:
        """Hits by name; asks while the probes are there."""
        found = {}
        for line in (self._tracefs / "uprobe_profile").read_text().splitlines():
            path, name, hits = line.split()
            if path == str(self._program):
                found[name] = int(hits)
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self._tracefs / "events" / self._group / "enable").write_text("0")
        for name in self._names:
            self._tell(f"-:{self._group}/{name}")
        self._mounts.close()

    def _tell(self, line: str) -> None:
        events = os.open(self._tracefs / "uprobe_events", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(events, f"{line}\n".encode())
        finally:
            os.close(events)
