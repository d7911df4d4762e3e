"""All call frame information of a large library decoded: ours at once, pyelftools entry by entry."""

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from memleak_android.unwind.cfi.compiled import compile_table
from memleak_android.unwind.cfi.module import Module

_LIBRARIES = ("/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1", "/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1")
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class WholeFile:
    """CPU seconds. missing: why nothing was measured."""

    path: str = ""
    functions: int = 0
    rows: int = 0
    ours_s: float = 0
    pyelftools_s: float = 0
    missing: str = ""


def measure() -> WholeFile:
    path = next((name for name in _LIBRARIES if Path(name).exists()), "")
    if not path:
        return WholeFile(missing="libLLVM is not installed")
    rows, seconds = 0, []
    for _ in range(_REPEATS):
        module = Module.from_path(path)
        begin = time.process_time()
        rows = len(compile_table(module.arch, module.table.sources).starts)
        seconds.append(time.process_time() - begin)
    # in a process of its own: it leaves half a million objects behind
    code = f"from bench.figures.whole_file import decode_all; print(*decode_all({path!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    functions, theirs = done.stdout.split()
    return WholeFile(path, int(functions), rows, statistics.median(seconds), float(theirs))


def decode_all(path: str) -> tuple[int, float]:
    """(FDEs, CPU seconds) of pyelftools, which parses .eh_frame and then decodes each entry's table."""
    from elftools.dwarf.callframe import FDE
    from elftools.elf.elffile import ELFFile

    begin = time.process_time()
    with Path(path).open("rb") as file:
        entries = ELFFile(file).get_dwarf_info(relocate_dwarf_sections=False).EH_CFI_entries()
        functions = [entry for entry in entries if isinstance(entry, FDE)]
        for entry in functions:
            entry.get_decoded()
    return len(functions), time.process_time() - begin
