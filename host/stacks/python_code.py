"""Functions in Python: their names, and the line of an instruction, by the code object's own table."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.profile.runtime_sites import PYTHON_FRAMES
from memleak_android.host.stacks.modules import ScriptModule
from memleak_android.host.symbols.symbolizer import ResolvedFrame
from memleak_android.host.wire.blocks import PythonLines
from memleak_android.host.wire.packed import distinct
from memleak_android.host.wire.python_frames import PythonCode

_FUNCTIONS_MAX = 1 << 20
_BYTES_MAX = 256 << 20  # of all names and tables
_LINE_BITS = 32  # of a vaddr, below the function's index
_UNKNOWN = PythonCode(0, 0, "[function in Python]", "", 0, 0, b"")

Lines = Iterator[tuple[int, int | None]]  # end of a range in bytes, its line (None = no line)


class PythonFunctions:
    """The functions of a session by index; 0 is the unknown one. Beyond the limits they stay unknown."""

    def __init__(self) -> None:
        self.codes: list[PythonCode] = [_UNKNOWN]
        self._index: dict[tuple[int, int], int] = {}
        self._left = _BYTES_MAX

    def add(self, codes: Iterable[PythonCode]) -> None:
        for code in codes:
            self._left -= len(code.function) + len(code.file) + len(code.table)
            if self._left < 0 or len(self.codes) >= _FUNCTIONS_MAX:
                return
            self._index[code.pid, code.number] = len(self.codes)
            self.codes.append(code)

    def vaddrs(
        self, pids: NDArray[np.uint32], codes: NDArray[np.uint32], offsets: NDArray[np.uint32]
    ) -> NDArray[np.uint64]:
        """Index of the function and line of the instruction in one number: stacks through the same lines are the same."""
        first, row = distinct(pids, codes, offsets)
        columns = (column[first].tolist() for column in (pids, codes, offsets))
        found = [
            self._vaddr(self._index.get((pid, code), 0), offset)
            for pid, code, offset in zip(*columns, strict=True)
        ]
        return np.array(found, np.uint64)[row]

    def _vaddr(self, index: int, offset: int) -> int:
        return index << _LINE_BITS | (line_of(self.codes[index], offset) or 0) & 0xFFFFFFFF

    def recorded(self) -> list[PythonCode]:
        """As they are in a finished recording: the number is the index, of no process, and lines are in the vaddrs."""
        return [replace(code, pid=0, number=i, table=b"") for i, code in enumerate(self.codes) if i]


@dataclass(frozen=True, slots=True)
class PythonModule(ScriptModule):
    """The module of frames in Python, whose vaddrs are of PythonFunctions.vaddrs()."""

    functions: PythonFunctions = field(default_factory=PythonFunctions)

    def resolve(self, vaddrs: NDArray[np.uint64]) -> list[tuple[ResolvedFrame, ...]]:
        return [(self._resolve(vaddr >> _LINE_BITS, vaddr & 0xFFFFFFFF),) for vaddr in vaddrs.tolist()]

    def _resolve(self, index: int, line: int) -> ResolvedFrame:
        code = self.functions.codes[index] if index < len(self.functions.codes) else _UNKNOWN
        return ResolvedFrame(code.function, 0, code.file or None, line or None, False)


def python_module(functions: PythonFunctions) -> PythonModule:
    return PythonModule(PYTHON_FRAMES, "", memoryview(b""), None, functions=functions)


def line_of(code: PythonCode, offset: int) -> int | None:
    """offset: of an instruction in bytes. Before the first one the line is that of the definition."""
    if not code.first_line or offset >> 31:
        return code.first_line or None
    ends, lines = _table(code)
    at = bisect_right(ends, offset)
    return lines[at] if at < len(ends) else code.first_line


@lru_cache(maxsize=64)
def _table(code: PythonCode) -> tuple[list[int], list[int | None]]:
    read = _READERS.get(code.lines)
    found = list(read(code)) if read is not None else []
    return [end for end, _ in found], [line for _, line in found]


def _linetable(code: PythonCode) -> Lines:
    """CPython 3.10, Objects/lnotab_notes.txt."""
    line, end = code.first_line, 0
    for length, change in zip(code.table[::2], code.table[1::2], strict=False):
        end += length
        line += (change - 256 if change > 127 else change) if change != 128 else 0
        yield end, None if change == 128 else line


def _locations(code: PythonCode) -> Lines:
    """CPython 3.11 and later, Objects/locations.md. Columns are passed over: only their bytes have the highest bit clear."""
    line, end, at, table = code.first_line, 0, 0, code.table
    while at < len(table):
        kind, units = table[at] >> 3 & 15, (table[at] & 7) + 1
        at += 1
        end += 2 * units
        if kind in (13, 14):
            line += _signed(table, at)
        elif 10 <= kind <= 12:
            line += kind - 10
        yield end, None if kind == 15 else line
        while at < len(table) and not table[at] & 128:
            at += 1


def _signed(table: bytes, at: int) -> int:
    """A variable-length integer: six bits of each byte, the lowest first; the very lowest is the sign."""
    value = shift = 0
    for byte in table[at : at + 6]:
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1


_READERS: dict[int, Callable[[PythonCode], Lines]] = {
    PythonLines.LINETABLE: _linetable,
    PythonLines.LOCATIONS: _locations,
}
