"""ElfImage: an ELF file as the unwinder reads it. Hostile ones give fewer sections, or BadElfError."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from memleak_android.unwind.elf_headers import (
    PT_GNU_EH_FRAME,
    PT_LOAD,
    SHF_COMPRESSED,
    UNPACKED_MAX,
    ElfSections,
    Section,
    Segment,
    unpack_xz,
)
from memleak_android.unwind.errors import BadElfError

_LOADS_MAX = 64  # PT_LOADs; linkers make a dozen, and each is searched for each address
_ELFCOMPRESS_ZLIB, _ELFCOMPRESS_ZSTD = b"\1\0\0\0", b"\2\0\0\0"
_ZDEBUG_MAGIC = b"ZLIB"  # GNU's .zdebug_*: the magic, the size as 8 bytes big-endian, a zlib stream
_ZSTD_WINDOW_MAX = 1 << 27  # what zstd --long takes
_PIECE = 1 << 20
_SPECIAL_SEGMENTS = {PT_GNU_EH_FRAME: ".eh_frame_hdr", 0x70000001: ".ARM.exidx"}  # PT_ARM_EXIDX


class ElfImage(ElfSections):
    """Raises BadElfError if the data is not an ELF file.

    loads: PT_LOAD segments in the order of the file, as far as it has their bytes.
    tables: PT_GNU_EH_FRAME and PT_ARM_EXIDX under the names of their sections, which strippers may take away.
    is_readable: False once the file behind `data` was cut: touching the lost pages would kill us.
    """

    def __init__(self, data: memoryview, path: str, is_readable: Callable[[], bool] = lambda: True) -> None:
        super().__init__(data, path)
        self.check_segments()
        self.is_readable = is_readable
        inside = [self._inside(segment) for segment in self.segments]
        self.loads = tuple(segment for segment in inside if segment.type == PT_LOAD)[:_LOADS_MAX]
        self.tables = {
            name: Section(name, segment.vaddr, segment.file_offset, segment.file_bytes)
            for segment in inside
            if (name := _SPECIAL_SEGMENTS.get(segment.type))
        }

    def _inside(self, segment: Segment) -> Segment:
        offset = min(segment.file_offset, len(self.data))
        return replace(
            segment, file_offset=offset, file_bytes=min(segment.file_bytes, len(self.data) - offset)
        )

    @property
    def word_bytes(self) -> int:
        return 8 if self.is_64_bit else 4

    def section(self, name: str) -> Section | None:
        """The first section of that name, if the file has its bytes."""
        found = self.find(name)
        return None if found is None or found.file_offset + found.size > len(self.data) else found

    def section_of_loader(self, name: str) -> Section | None:
        """A table by its program header, which the loader itself believes, else by its section's name."""
        return self.tables.get(name) or self.section(name)

    def section_bytes(self, section: Section) -> memoryview:
        """The bytes of a section as they are in the file (not decompressed); none once the file was cut."""
        return self.content(section) if self.is_readable() else memoryview(b"")

    def bytes_at(self, vaddr: int, size: int) -> bytes:
        """File contents at a vaddr; fewer than `size` bytes, or none, where the file has no more."""
        for segment in self.loads if self.is_readable() else ():
            delta = vaddr - segment.vaddr
            if 0 <= delta < segment.file_bytes:
                start = segment.file_offset + delta
                return bytes(self.data[start : start + min(size, segment.file_bytes - delta)])
        return b""

    def word_at(self, vaddr: int) -> int | None:
        """The pointer that the file holds at a vaddr (not relocated)."""
        word = self.bytes_at(vaddr, self.word_bytes)
        return int.from_bytes(word, "little") if len(word) == self.word_bytes else None

    def debug_section(self, name: str) -> bytes:
        """The contents of .debug_NAME or .zdebug_NAME, decompressed; b"" if it is missing or damaged.

        Those packed by zstd, which no tool chain of Android's does by itself, need the package zstandard.
        """
        section = self.section(f".debug_{name}")
        if section is not None:
            data = bytes(self.section_bytes(section))
            if not section.flags & SHF_COMPRESSED:
                return data
            head = 24 if self.word_bytes == 8 else 12  # Elf64_Chdr, Elf32_Chdr (gABI)
            unpack = {_ELFCOMPRESS_ZLIB: _inflate, _ELFCOMPRESS_ZSTD: _unpack_zstd}.get(data[:4])
            return unpack(data[head:]) if unpack is not None else b""
        old = self.section(f".zdebug_{name}")
        data = bytes(self.section_bytes(old)) if old is not None else b""
        return _inflate(data[12:]) if data[:4] == _ZDEBUG_MAGIC else b""

    @cached_property
    def mini_debuginfo(self) -> ElfImage | None:
        """The ELF inside .gnu_debugdata, unpacked once: the symbols and CFI of a stripped file, at this file's vaddrs."""
        section = self.section(".gnu_debugdata")
        data = unpack_xz(self.section_bytes(section)) if section is not None else b""
        try:
            inner = ElfImage(memoryview(data), ".gnu_debugdata")
        except BadElfError:
            return None
        return inner if inner.machine == self.machine else None


def _inflate(data: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, UNPACKED_MAX)
    except zlib.error:
        return b""


def _unpack_zstd(data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        return b""
    pieces, left = list[bytes](), UNPACKED_MAX
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).stream_reader(data)
        while left > 0 and (piece := reader.read(min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    except zstandard.ZstdError:
        return b""
    return b"".join(pieces)
