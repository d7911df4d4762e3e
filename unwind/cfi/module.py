"""Module: one ELF file, its build id, its segments and the sections that an unwinder needs."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch import arch_by_elf_machine
from memleak_android.unwind.cfi.sources import row_sources
from memleak_android.unwind.cfi.table import UnwindTable
from memleak_android.unwind.elf_headers import MACHINE_NAMES, SYMBOL_32, has_name
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.errors import BadElfError, UnsupportedArchError
from memleak_android.unwind.file_reading import contents, opened
from memleak_android.unwind.maps import Mapping

_PAGE = 4096  # file offsets of mappings are at least this coarse on every Linux
# Not _exit: exit itself goes straight there, and it has a caller.
_EXITS = (b"exit", b"pthread_exit", b"thrd_exit")


class Module(ElfImage):
    """An ELF file as the unwinder sees it. Make one by from_path or from_bytes.

    Raises BadElfError, UnsupportedArchError.
    path: for messages. arch: its table. build_id: "" when it has none. soname is left to symbols.
    elf_offset: where in the file the ELF begins (libraries inside an APK), bytes.
    """

    def __init__(self, data: memoryview, path: str, elf_offset: int = 0) -> None:
        self.elf_offset = elf_offset
        self._file_map: mmap.mmap | None = None
        super().__init__(data[elf_offset:], path, self._is_readable)
        found = arch_by_elf_machine(self.machine)
        if found is None or found.word_bytes != self.word_bytes:
            name = MACHINE_NAMES.get(self.machine, self.machine)
            raise UnsupportedArchError(f"{name} with words of {self.word_bytes} bytes")
        self.arch = found
        if not self.loads and not any(self.section(section.name) for section in self.sections):
            raise BadElfError(path, "no PT_LOAD segment")

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], elf_offset: int = 0) -> Module:
        """Maps the file if no other user can change it; then nothing is read before it is needed.

        Raises BadElfError, UnsupportedArchError.
        """
        try:
            with opened(path) as file:
                data = contents(file.fileno(), path)
        except (OSError, ValueError) as error:
            raise BadElfError(os.fspath(path), str(error)) from None
        module = cls(data, os.fspath(path), elf_offset)
        module._file_map = data.obj if isinstance(data.obj, mmap.mmap) else None
        return module

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, path: str = "[vdso]") -> Module:
        """An ELF image that is not a file: the vdso, or one read from memory."""
        return cls(memoryview(data), path)

    def bias_of(self, mapping: Mapping) -> int:
        """vaddr - address, constant over a mapping of this file.

        The PT_LOAD whose file range the mapping shows decides; where pages at the seam of two segments
        belong to both, an executable mapping shows the executable one.
        """
        first = mapping.file_offset - self.elf_offset
        last = first + (mapping.end - mapping.start)
        shown = [
            s
            for s in self.loads
            if s.file_offset - s.file_offset % _PAGE < last and s.file_offset + s.file_bytes > first
        ]
        same_rights = [s for s in shown if s.is_executable == mapping.is_executable]
        candidates = same_rights or shown or list(self.loads)
        if not candidates:
            return first - mapping.start  # an ELF without segments (a JIT's symbol file): offsets are vaddrs
        segment = candidates[0]
        return segment.vaddr - segment.file_offset + first - mapping.start

    def vaddr_of(self, mapping: Mapping, address: int) -> int:
        """The vaddr in this file of an address inside one of its mappings."""
        return address + self.bias_of(mapping)

    def _is_readable(self) -> bool:
        """False once the file has become shorter (rebuilt in place): touching the lost pages would kill us."""
        return self._file_map is None or self._file_map.size() >= len(self._file_map)

    def symbols(self, table: str, strings: str) -> tuple[NDArray[np.void], bytes]:
        """The symbols of a section and their string table; none where one of them is missing."""
        rows, text = self.section(table), self.section(strings)
        if rows is None or text is None:
            return np.empty(0, SYMBOL_32), b""
        data, layout = self.section_bytes(rows), self.symbol_layout
        return np.frombuffer(data, layout, len(data) // layout.itemsize), bytes(self.section_bytes(text))

    def functions(self, names: Iterable[bytes]) -> frozenset[int]:
        """The vaddrs of exported functions of these names (.dynsym)."""
        symbols, strings = self.symbols(".dynsym", ".dynstr")
        chosen = np.logical_or.reduce([has_name(symbols, strings, name) for name in names])
        mask = self.arch.instruction_mask  # Thumb functions have bit 0 set
        return frozenset(
            vaddr & mask for vaddr in symbols["value"][chosen & (symbols["value"] != 0)].tolist()
        )

    @cached_property
    def exits(self) -> frozenset[int]:
        """The vaddrs of functions that never return."""
        return self.functions(_EXITS)

    def code_is(self, vaddrs: NDArray[np.uint64], code: bytes) -> NDArray[np.int64]:
        """Positions in vaddrs where the file's contents begin with `code`."""
        image = np.frombuffer(self.data, np.uint8)
        found = [np.empty(0, np.int64)]
        for segment in self.loads if len(vaddrs) and self._is_readable() else ():
            delta = vaddrs - np.uint64(segment.vaddr)  # wraps for addresses below
            chosen = np.flatnonzero(delta < np.uint64(max(segment.file_bytes - len(code) + 1, 0)))
            at = delta[chosen].astype(np.int64) + segment.file_offset
            for i, byte in enumerate(code):
                same = image[at + i] == byte
                chosen, at = chosen[same], at[same]
            found.append(chosen)
        return np.unique(np.concatenate(found))

    @cached_property
    def table(self) -> UnwindTable:
        """The module's unwind rows, decoded as they are asked for."""
        return UnwindTable(self.arch, row_sources(self))
