"""ELF files as modules: real ones, images in memory, broken ones, and unpacked contents of sections."""

import lzma
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.unwind import BadElfError, Module, UnsupportedArchError, elf_image
from memleak_android.unwind.cfi.rules import UnwindRow
from tests.unwind.fuzz import seeds
from tests.unwind.fuzz.elf_container import PT_GNU_EH_FRAME, SHT_PROGBITS, Part, section_offset

LIBC = Path("/usr/lib/x86_64-linux-gnu/libc.so.6")
SMALL = Path("/usr/bin/true")


@pytest.fixture(scope="module")
def image() -> bytes:
    if not SMALL.exists():
        pytest.skip(f"{SMALL} is not on this machine")
    return SMALL.read_bytes()


def test_build_id_is_readelfs() -> None:
    if shutil.which("readelf") is None or not LIBC.exists():
        pytest.skip("needs readelf and glibc")
    notes = subprocess.run(["readelf", "-nW", LIBC], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Build ID: ([0-9a-f]+)", notes)
    assert match is not None and Module.from_path(LIBC).build_id == match[1]


@pytest.mark.parametrize("offset", [0, 2**40, 2**64 - 8, 100], ids=["none", "outside", "wraps", "nonsense"])
def test_without_section_headers_the_rows_are_the_same(image: bytes, offset: int) -> None:
    """As an image read from memory is, or what packers leave: .eh_frame by way of PT_GNU_EH_FRAME."""
    bare = bytearray(image)
    bare[40:48] = offset.to_bytes(8, "little")  # e_shoff
    if not offset:
        bare[60:64] = bytes(4)  # e_shnum, e_shstrndx
    whole, stripped = Module.from_bytes(image), Module.from_bytes(bytes(bare))
    text = whole.section(".text")
    assert text is not None and stripped.section(".eh_frame") is None
    vaddrs = np.arange(text.vaddr, text.vaddr + text.size, dtype=np.uint64)
    a, b = whole.table.row_ids(vaddrs), stripped.table.row_ids(vaddrs)
    mine = [whole.table.rows[i] if i >= 0 else i for i in a]
    theirs = [stripped.table.rows[i] if i >= 0 else i for i in b]
    assert mine == theirs and (a >= 0).mean() > 0.9


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"not an ELF file at all" * 10, bytes(4096)])
def test_files_that_are_not_elf_are_refused(data: bytes) -> None:
    with pytest.raises(BadElfError, match="could not read x"):
        Module.from_bytes(data, "x")


def test_missing_file_is_named() -> None:
    with pytest.raises(BadElfError, match=r"/nowhere/lib\.so"):
        Module.from_path("/nowhere/lib.so")


def test_file_that_is_cut_while_in_use(image: bytes, tmp_path: Path) -> None:
    """A library rebuilt in place: nothing more is found in it, nothing breaks."""
    path = tmp_path / "lib.so"
    path.write_bytes(image)
    module = Module.from_path(path)
    text = module.section(".text")
    assert text is not None and module.bytes_at(text.vaddr, 4) != b""
    path.write_bytes(b"")
    assert module.bytes_at(text.vaddr, 4) == b""
    vaddrs = np.arange(text.vaddr, text.vaddr + 64, dtype=np.uint64)
    assert not len(module.code_is(vaddrs, b"\x48"))
    assert set(module.table.row_ids(vaddrs).tolist()) == {-1}


def test_other_machine_is_refused(image: bytes) -> None:
    other = bytearray(image)
    other[18:20] = b"\x08\x00"  # EM_MIPS
    with pytest.raises(UnsupportedArchError):
        Module.from_bytes(bytes(other))


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
