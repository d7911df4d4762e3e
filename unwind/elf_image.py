"""ElfImage: an ELF file's headers and the bytes behind them. Hostile ones give fewer sections, or BadElfError."""

from __future__ import annotations

import io
import itertools
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

from memleak_android.unwind.errors import BadElfError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SEGMENTS_MAX = 1024
_LOADS_MAX = 64  # PT_LOADs; linkers make a dozen, and each is searched for each address
_NOTES_MAX = 1024  # of all note segments together
_NAME_BYTES_MAX = 256
_BUILD_ID_BYTES_MAX = 64
_SECTIONS_MAX = 16384  # beyond, section headers are ignored: segments are enough to unwind
_PF_X = 1
_SHF_COMPRESSED = 0x800
_ELFCOMPRESS_ZLIB, _ELFCOMPRESS_ZSTD = b"\1\0\0\0", b"\2\0\0\0"
_ZDEBUG_MAGIC = (
    b"ZLIB"  # GNU's older form (.zdebug_*): the magic, the size as 8 bytes big-endian, a zlib stream
)
_INFLATED_MAX = 1 << 28  # bytes; beyond any .debug_frame and any .gnu_debugdata, a bomb stops here
_XZ_MEMORY_MAX = 1 << 27  # xz -9 needs 65 MiB to unpack
_ZSTD_WINDOW_MAX = 1 << 27  # what zstd --long takes
_PIECE = 1 << 20
_SHT_NOBITS = 8
_NT_GNU_BUILD_ID = 3
_NOTE_HEAD = struct.Struct("<III")
_SPECIAL_SEGMENTS = {
    "PT_GNU_EH_FRAME": ".eh_frame_hdr",
    "PT_ARM_EXIDX": ".ARM.exidx",
    0x70000001: ".ARM.exidx",
}
# pyelftools meets hostile headers with whatever its parser stumbles over.
_PARSER_ERRORS = (ELFError, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError, OSError, UnicodeError, AssertionError)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD program header. Offsets are from the ELF header, wherever it is in the file."""

    file_offset: int
    file_bytes: int
    vaddr: int
    memory_bytes: int
    is_executable: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A section with bytes in the file, or a segment that is as good as one. Offsets as in Segment."""

    name: str
    vaddr: int
    file_offset: int
    size: int
    is_compressed: bool = False  # SHF_COMPRESSED


class ElfImage:
    """The headers of an ELF file. Raises BadElfError if the data is not an ELF file.

    machine: e_machine. word_bytes: 4 or 8. segments: PT_LOAD, in the order of the file. notes: (offset, size).
    tables: PT_GNU_EH_FRAME and PT_ARM_EXIDX under the names of their sections, which strippers may take away.
    is_readable: False once the file behind `data` was cut: touching the lost pages would kill us.
    """

    def __init__(self, data: memoryview, path: str, is_readable: Callable[[], bool] = lambda: True) -> None:
        self.data = data
        self.is_readable = is_readable
        try:
            elf = _open_elf(data)
            self.machine = int.from_bytes(data[18:20], "little")
            self.machine_name = str(elf.header["e_machine"])
            self.word_bytes = 8 if data[4] == 2 else 4
            self.is_little_endian = data[5] == 1
            self.elf_type: str = elf.header["e_type"]
            self._read_segments(elf)
            self.sections = _sections(elf, len(data))
        except _PARSER_ERRORS as error:
            raise BadElfError(path, f"not a usable ELF file ({str(error) or type(error).__name__})") from None

    def _read_segments(self, elf: ELFFile) -> None:
        segments: list[Segment] = []
        self.notes: list[tuple[int, int]] = []
        self.tables: dict[str, Section] = {}
        size = len(self.data)
        for p in _headers(elf, "ph", min(elf.num_segments(), _SEGMENTS_MAX)):
            offset = min(p["p_offset"], size)
            file_bytes = min(p["p_filesz"], size - offset)
            if p["p_type"] == "PT_LOAD" and len(segments) < _LOADS_MAX:
                executable = bool(p["p_flags"] & _PF_X)
                segments.append(Segment(offset, file_bytes, p["p_vaddr"], p["p_memsz"], executable))
            elif p["p_type"] in _SPECIAL_SEGMENTS:
                name = _SPECIAL_SEGMENTS[p["p_type"]]
                self.tables[name] = Section(name, p["p_vaddr"], offset, file_bytes)
            elif p["p_type"] == "PT_NOTE":
                self.notes.append((offset, file_bytes))
        self.segments = tuple(segments)

    def section(self, name: str) -> Section | None:
        """The first section of that name with bytes in the file."""
        return next((s for s in self.sections if s.name == name), None)

    def table(self, name: str) -> Section | None:
        """A table by its program header, which the loader itself believes, else by its section's name."""
        return self.tables.get(name) or self.section(name)

    def section_bytes(self, section: Section) -> memoryview:
        """The bytes of a section as they are in the file (not decompressed); none once the file was cut."""
        if not self.is_readable():
            return memoryview(b"")
        return self.data[section.file_offset : section.file_offset + section.size]

    def bytes_at(self, vaddr: int, size: int) -> bytes:
        """File contents at a vaddr; fewer than `size` bytes, or none, where the file has no more."""
        for segment in self.segments if self.is_readable() else ():
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
            if not section.is_compressed:
                return data
            head = 24 if self.word_bytes == 8 else 12  # Elf64_Chdr, Elf32_Chdr (gABI)
            unpack = {_ELFCOMPRESS_ZLIB: _inflate, _ELFCOMPRESS_ZSTD: _unpack_zstd}.get(data[:4])
            return unpack(data[head:]) if unpack is not None else b""
        old = self.section(f".zdebug_{name}")
        data = bytes(self.section_bytes(old)) if old is not None else b""
        return _inflate(data[12:]) if data[:4] == _ZDEBUG_MAGIC else b""

    def find_build_id(self) -> str:
        """NT_GNU_BUILD_ID in hex, or ''."""
        section = self.section(".note.gnu.build-id")
        spans = self.notes + ([(section.file_offset, section.size)] if section else [])
        contents = (bytes(self.data[at : at + min(size, 65536)]) for at, size in spans if self.is_readable())
        notes = itertools.chain.from_iterable(map(iterate_notes, contents))
        for kind, owner, value in itertools.islice(notes, _NOTES_MAX):
            if kind == _NT_GNU_BUILD_ID and owner == b"GNU\0" and len(value) <= _BUILD_ID_BYTES_MAX:
                return value.hex()
        return ""

    def mini_debuginfo(self) -> ElfImage | None:
        """The ELF inside .gnu_debugdata (xz): its vaddrs are this file's own. None without a usable one."""
        section = self.section(".gnu_debugdata")
        if section is None:
            return None
        data = unpack_xz(self.section_bytes(section))
        try:
            inner = ElfImage(memoryview(data), ".gnu_debugdata")
        except BadElfError:
            return None
        return inner if inner.machine == self.machine else None


def _inflate(data: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, _INFLATED_MAX)
    except zlib.error:
        return b""


def _unpack_zstd(data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        return b""
    pieces, left = list[bytes](), _INFLATED_MAX
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).stream_reader(data)
        while left > 0 and (piece := reader.read(min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    except zstandard.ZstdError:
        return b""
    return b"".join(pieces)


def unpack_xz(data: memoryview) -> bytes:
    """An xz stream unpacked to _INFLATED_MAX bytes at most; b"" when it is damaged or larger."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_MAX)
    pieces: list[bytes] = []
    left = _INFLATED_MAX
    try:
        piece = unpacker.decompress(data, _PIECE)
        while piece or not (unpacker.eof or unpacker.needs_input):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                return b""
            if unpacker.eof:
                break
            piece = unpacker.decompress(b"", _PIECE)
    except (lzma.LZMAError, EOFError, MemoryError):
        return b""
    return b"".join(pieces) if unpacker.eof else b""


class _View(io.RawIOBase):
    """A seekable stream over a memoryview, without a copy of a large file."""

    def __init__(self, data: memoryview, head: bytes = b"") -> None:
        self._data = data
        self._head = head  # replaces the first bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer)
        chunk = self._data[self._at : self._at + len(target)]
        target[: len(chunk)] = chunk
        head = self._head[self._at : self._at + len(target)]
        target[: len(head)] = head
        self._at += len(chunk)
        return len(chunk)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = (0, self._at, len(self._data))[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at


def _open_elf(data: memoryview) -> ELFFile:
    """With its section headers when they can be read; packers and strippers leave broken ones behind."""
    try:
        return ELFFile(io.BufferedReader(_View(data)))
    except _PARSER_ERRORS:
        head = bytearray(data[:64])
        for start, end in ((40, 48), (60, 64)) if head[4:5] == b"\2" else ((32, 36), (48, 52)):
            head[start:end] = bytes(end - start)  # e_shoff; e_shnum and e_shstrndx
        return ELFFile(io.BufferedReader(_View(data, bytes(head))))


def _headers(elf: ELFFile, kind: Literal["ph", "sh"], count: int) -> list[Any]:
    """Program or section headers. pyelftools' own objects read more of the file, and fail where that is damaged."""
    layout = elf.structs.Elf_Phdr if kind == "ph" else elf.structs.Elf_Shdr
    stride = elf[f"e_{kind}entsize"]
    if count and stride < layout.sizeof():
        raise ELFError(f"headers of {stride} bytes")
    return [struct_parse(layout, elf.stream, elf[f"e_{kind}off"] + i * stride) for i in range(count)]


def _sections(elf: ELFFile, size: int) -> tuple[Section, ...]:
    """Sections by name, of any type: lld marks .eh_frame as SHT_X86_64_UNWIND. Empty if unusable."""
    try:
        count = elf.num_sections()
        if not 0 < count <= _SECTIONS_MAX:
            return ()
        headers = _headers(elf, "sh", count)
        names = headers[elf.get_shstrndx()]
        elf.stream.seek(names["sh_offset"])
        strings = elf.stream.read(min(names["sh_size"], 1 << 24))
    except _PARSER_ERRORS:
        return ()
    return tuple(_sections_with_bytes(headers, strings, size))


def _sections_with_bytes(headers: list[Any], strings: bytes, size: int) -> Iterator[Section]:
    for h in headers:
        no_bytes = h["sh_type"] in ("SHT_NOBITS", _SHT_NOBITS, "SHT_NULL")
        if no_bytes or h["sh_offset"] > size or h["sh_size"] > size - h["sh_offset"]:
            continue
        name = (
            strings[h["sh_name"] : h["sh_name"] + _NAME_BYTES_MAX].split(b"\0")[0].decode("utf-8", "replace")
        )
        compressed = bool(h["sh_flags"] & _SHF_COMPRESSED)
        yield Section(name, h["sh_addr"], h["sh_offset"], h["sh_size"], compressed)


def iterate_notes(data: bytes | memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    """(type, owner, value) of ELF notes (elf(5))."""
    at = 0
    while at + 12 <= len(data):
        owner_bytes, value_bytes, kind = _NOTE_HEAD.unpack_from(data, at)
        value_at = at + 12 + (owner_bytes + 3 & ~3)
        if value_at + value_bytes > len(data):
            return
        owner = bytes(data[at + 12 : at + 12 + owner_bytes])
        yield kind, owner, bytes(data[value_at : value_at + value_bytes])
        at = value_at + (value_bytes + 3 & ~3)
