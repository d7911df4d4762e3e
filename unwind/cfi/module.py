"""Module: one ELF file, its build id, its segments and the sections that an unwinder needs."""

from __future__ import annotations

import mmap
import os
import re
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch import Arch, arch_by_elf_machine
from memleak_android.unwind.cfi.sources import row_sources
from memleak_android.unwind.cfi.table import UnwindTable
from memleak_android.unwind.elf_image import ElfImage, Section, Segment
from memleak_android.unwind.errors import BadElfError, UnsupportedArchError
from memleak_android.unwind.maps import Mapping

__all__ = ["Module", "Section", "Segment"]

_PAGE = 4096  # file offsets of mappings are at least this coarse on every Linux
_SYMBOLS = {  # Elf32_Sym, Elf64_Sym by bytes of a word
    4: np.dtype([("name", "<u4"), ("vaddr", "<u4"), ("size", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")]),
    8: np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("vaddr", "<u8"), ("size", "<u8")]),
}  # fmt: skip


class Module:
    """An ELF file as the unwinder sees it. Make one by from_path or from_bytes; both raise BadElfError.

    path: for messages. arch: its table. build_id: "" when it has none. soname is left to symbols.
    elf_offset: where in the file the ELF begins (libraries inside an APK), bytes.
    """

    def __init__(self, data: memoryview, path: str, elf_offset: int = 0) -> None:
        self.path = path
        self.elf_offset = elf_offset
        self._data = data[elf_offset:]
        self._file_map: mmap.mmap | None = None
        self.image = ElfImage(self._data, path, self._is_readable)
        self.arch = _arch_of(self.image)
        self.elf_type, self.segments, self.sections = (
            self.image.elf_type,
            self.image.segments,
            self.image.sections,
        )
        if not self.segments and not self.sections:
            raise BadElfError(path, "no PT_LOAD segment")
        self.build_id = self.image.find_build_id()

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], elf_offset: int = 0) -> Module:
        """Maps the file; nothing is read before it is needed. Raises BadElfError, UnsupportedArchError."""
        try:
            with Path(path).open("rb") as file:
                file_map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise BadElfError(os.fspath(path), str(error)) from None
        module = cls(memoryview(file_map), os.fspath(path), elf_offset)
        module._file_map = file_map
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
            for s in self.segments
            if s.file_offset - s.file_offset % _PAGE < last and s.file_offset + s.file_bytes > first
        ]
        same_rights = [s for s in shown if s.is_executable == mapping.is_executable]
        candidates = same_rights or shown or list(self.segments)
        if not candidates:
            return first - mapping.start  # an ELF without segments (a JIT's symbol file): offsets are vaddrs
        segment = candidates[0]
        return segment.vaddr - segment.file_offset + first - mapping.start

    def vaddr_of(self, mapping: Mapping, address: int) -> int:
        """The vaddr in this file of an address inside one of its mappings."""
        return address + self.bias_of(mapping)

    def section(self, name: str) -> Section | None:
        """The first section of that name with bytes in the file."""
        return self.image.section(name)

    def section_bytes(self, section: Section) -> memoryview:
        """The bytes of a section as they are in the file (not decompressed); none once the file was cut."""
        return self.image.section_bytes(section)

    def _is_readable(self) -> bool:
        """False once the file has become shorter (rebuilt in place): touching the lost pages would kill us."""
        return self._file_map is None or self._file_map.size() >= len(self._file_map)

    def bytes_at(self, vaddr: int, size: int) -> bytes:
        """File contents at a vaddr; fewer than `size` bytes, or none, where the file has no more."""
        return self.image.bytes_at(vaddr, size)

    def functions(self, names: frozenset[bytes]) -> frozenset[int]:
        """The vaddrs of exported functions of these names (.dynsym)."""
        table, strings = self.section(".dynsym"), self.section(".dynstr")
        if table is None or strings is None:
            return frozenset()
        data, text = self.section_bytes(table), self.section_bytes(strings)
        form = _SYMBOLS[self.arch.word_bytes]
        symbols = np.frombuffer(data, form, len(data) // form.itemsize)
        wanted: set[int] = set()
        for name in names:
            # linkers let short names share the tail of longer ones, so every occurrence may match
            wanted.update(found.start() for found in re.finditer(re.escape(name) + b"\0", text))
        chosen = np.isin(symbols["name"], list(wanted)) & (symbols["vaddr"] != 0)
        mask = self.arch.instruction_mask  # Thumb functions have bit 0 set
        return frozenset(vaddr & mask for vaddr in symbols["vaddr"][chosen].tolist())

    def code_is(self, vaddrs: NDArray[np.uint64], code: bytes) -> NDArray[np.int64]:
        """Positions in vaddrs where the file's contents begin with `code`."""
        image = np.frombuffer(self._data, np.uint8)
        found = [np.empty(0, np.int64)]
        for segment in self.segments if len(vaddrs) and self._is_readable() else ():
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
        return UnwindTable(self.arch, row_sources(self.image, lambda: self.mini_debuginfo))

    @cached_property
    def mini_debuginfo(self) -> ElfImage | None:
        """The ELF inside .gnu_debugdata, unpacked once: the symbols and CFI of a stripped file."""
        return self.image.mini_debuginfo()


def _arch_of(image: ElfImage) -> Arch:
    arch = arch_by_elf_machine(image.machine)
    if arch is None:
        raise UnsupportedArchError(image.machine_name)
    if image.word_bytes != arch.word_bytes or not image.is_little_endian:
        raise UnsupportedArchError(f"{image.machine_name} of another word size or byte order")
    return arch
