"""Unpacked section contents: compressed debug sections, mini debug info."""

import lzma
import struct

import pytest

from memleak_android.unwind import Module, elf_image
from memleak_android.unwind.cfi.rules import UnwindRow
from tests.unwind.fuzz import seeds
from tests.unwind.fuzz.elf_container import PT_GNU_EH_FRAME, SHT_PROGBITS, Part, section_offset


def library(*more: Part) -> bytes:
    return seeds.elf(seeds.X86_64, more)


def rows_of(data: bytes) -> list[UnwindRow]:
    start, table = section_offset(data, ".text", seeds.X86_64), Module.from_bytes(data).table
    return [row for row in map(table.row_at, range(start, start + 640)) if row is not None]


def test_hostile_zstd_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setattr(elf_image, "UNPACKED_MAX", 3 << 20)
    packed = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    assert len(elf_image._unpack_zstd(packed)) == 3 << 20
    assert elf_image._unpack_zstd(packed[:-3]) in (b"", bytes(3 << 20))
    assert elf_image._unpack_zstd(b"no zstd") == b""


def test_llds_section_type_for_eh_frame() -> None:
    """SHT_X86_64_UNWIND, without which a non-PIE clang cannot be stepped; by the section alone, not by the header."""
    whole = library()
    data, table = bytearray(whole), struct.unpack_from("<Q", whole, 40)[0]
    for name in (".eh_frame", ".eh_frame_hdr"):
        at = section_offset(whole, name, seeds.X86_64).to_bytes(8, "little")
        header = data.index(at, table) - 16  # of sh_addr, which is the file offset
        assert struct.unpack_from("<I", data, header + 4)[0] == SHT_PROGBITS
        struct.pack_into("<I", data, header + 4, 0x70000001)
    data = data.replace(struct.pack("<II", PT_GNU_EH_FRAME, 5), bytes(8))
    rows = rows_of(bytes(data))
    assert rows == rows_of(whole) and len(rows) > 600


DAMAGED = [b"\0", b"\xfd7zXZ\0", lzma.compress(b"not an ELF file"), lzma.compress(bytes(100))[:-9]]


@pytest.mark.parametrize("packed", DAMAGED)
def test_damaged_mini_debuginfo_loses_nothing(packed: bytes) -> None:
    data = library(Part(".gnu_debugdata", packed))
    assert Module.from_bytes(data).mini_debuginfo is None and rows_of(data) == rows_of(library())


def test_an_xz_bomb_is_not_unpacked() -> None:
    """320 MB of zeros in 50 KB: given up at the bound."""
    packer = lzma.LZMACompressor(preset=0)
    bomb = b"".join(packer.compress(bytes(1 << 24)) for _ in range(20)) + packer.flush()
    assert Module.from_bytes(library(Part(".gnu_debugdata", bomb))).mini_debuginfo is None
