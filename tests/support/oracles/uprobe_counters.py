"""The kernel's own counters of uprobes, as an oracle: tracefs's uprobe_events and uprobe_profile."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memleak_android.host.elf.dynamic import ElfFile

TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


@contextmanager
def _tracefs() -> Iterator[Path]:
    """In a folder of its own, where the machine has not mounted it. Skips, with the reason, where it may not be."""
    if found := [folder for folder in TRACEFS if (folder / "uprobe_events").exists()]:
        yield found[0]
        return
    with tempfile.TemporaryDirectory() as folder:
        argv = ["mount", "-t", "tracefs", "nodev", folder]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"tracefs is not mounted, and cannot be: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@contextmanager
def uprobe_counters(program: Path, names: Collection[str]) -> Iterator[Callable[[], dict[str, int]]]:
    """Counts entries of functions of one file, in whatever process: hits by name, while it is open."""
    group, elf = f"oracle{os.getpid()}", ElfFile(program)
    symbols = elf.dynamic_functions(set(names)) or elf.static_functions(set(names))
    with _tracefs() as tracefs:

        def write(line: str) -> None:
            file = os.open(
                tracefs / "uprobe_events", os.O_WRONLY | os.O_APPEND
            )  # open("a") seeks, which it refuses
            with os.fdopen(file, "wb") as events:
                events.write(f"{line}\n".encode())

        def counts() -> dict[str, int]:
            lines = (tracefs / "uprobe_profile").read_text().splitlines()
            return {name: int(hits) for path, name, hits in map(str.split, lines) if path == str(program)}

        for symbol in symbols:
            write(f"p:{group}/{symbol.name} {program}:{elf.file_offset(symbol.vaddr):#x}")
        (tracefs / "events" / group / "enable").write_text("1")
        try:
            yield counts
        finally:
            (tracefs / "events" / group / "enable").write_text("0")
            for name in names:
                write(f"-:{group}/{name}")
