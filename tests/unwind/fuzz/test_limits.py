"""Files that claim or unfold to more than any machine holds, and names that are made for the reader's terminal."""

import lzma
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from memleak_android.host.commands.unwind import unwind
from memleak_android.host.symbols.names_in_file import FunctionNames
from memleak_android.unwind import Mapping, Module, UnwindError
from memleak_android.unwind.cfi.expression import evaluate
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.maps import layered
from memleak_android.unwind.snapshot.folder import Snapshot
from tests.unwind.fuzz import seeds
from tests.unwind.fuzz.elf_container import (
    PT_NOTE,
    SHT_NOTE,
    SHT_STRTAB,
    SHT_SYMTAB,
    Part,
    section_offset,
    write_elf,
)
from tests.unwind.fuzz.targets import Machine

X86_64 = seeds.X86_64


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """CPU time of the body."""
    before = time.process_time()
    yield
    assert time.process_time() - before < seconds


def image(*parts: Part) -> ElfImage:
    return ElfImage(memoryview(write_elf(X86_64, list(parts))), "a.so")


def with_header(data: bytes, field: int, size: int, value: int) -> bytes:
    """e_phnum at 56, e_shnum at 60, e_phoff at 32, e_shoff at 40 …"""
    return data[:field] + value.to_bytes(size, "little") + data[field + size :]


def test_section_names_that_do_not_end() -> None:
    """16,000 sections, each named by all 16 MB of a string table without a NUL."""
    data = bytearray(write_elf(X86_64, [Part(".x", b"")]))
    names = len(data)
    data += b"A" * (1 << 24)
    count = 16_000
    table = len(data)
    data += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names, 1 << 24, 0, 0, 1, 0)
    data += struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, names, 16, 0, 0, 1, 0) * (count - 1)
    data[40:48], data[60:62], data[62:64] = struct.pack("<Q", table), struct.pack("<H", count), b"\0\0"
    with within(5):
        assert ElfImage(memoryview(data), "a.so").section(".eh_frame") is None


def test_a_thousand_note_segments_of_empty_notes() -> None:
    notes = bytes(1 << 16)
    data = write_elf(
        X86_64, [Part(f".note{i}", notes if not i else b"", SHT_NOTE, segment=PT_NOTE) for i in range(900)]
    )
    offset = section_offset(data, ".note0", X86_64)
    changed = bytearray(data)
    for i in range(1, 901):
        struct.pack_into("<Q", changed, 64 + 56 * i + 8, offset)
        struct.pack_into("<Q", changed, 64 + 56 * i + 32, len(notes))
    with within(1):
        assert Module.from_bytes(bytes(changed)).build_id == ""


def test_a_build_id_of_4_gigabytes() -> None:
    note = struct.pack("<III", 4, 0xFFFFFFF0, 3) + b"GNU\0" + bytes(range(64))
    assert image(Part(".note.gnu.build-id", note, SHT_NOTE, segment=PT_NOTE)).build_id == ""


@pytest.mark.parametrize(("field", "size"), [(56, 2), (60, 2), (54, 2), (58, 2), (62, 2), (32, 8), (40, 8)])
@pytest.mark.parametrize("value", [0xFFFF, 0x7FFF, 1, (1 << 64) - 1, 1 << 40])
def test_headers_that_count_to_the_end_of_the_world(field: int, size: int, value: int) -> None:
    data = with_header(seeds.elf(X86_64), field, size, value & (1 << 8 * size) - 1)
    with within(3):
        try:
            module = Module.from_bytes(data)
            module.table.row_at(0x1000)
            FunctionNames(module).find(0x400)
        except UnwindError as error:
            assert len(str(error).splitlines()) == 1


def test_hundreds_of_overlapping_segments() -> None:
    """All PT_LOADs show the same bytes: looking for signal trampolines looked through each."""
    data = bytearray(write_elf(X86_64, [Part("", b"\xc3" * 64, segment=1) for _ in range(1000)]))
    for i in range(1001):
        struct.pack_into("<IIQQQQQQ", data, 64 + 56 * i, 1, 5, 0, 0, 0, len(data), len(data), 1)
    assert len(Module.from_bytes(bytes(data)).loads) <= 64


@pytest.mark.parametrize(
    "pack",
    [
        lambda data: Part(".debug_frame", struct.pack("<IIQQ", 1, 0, 1 << 60, 1) + data, flags=0x800),
        lambda data: Part(".zdebug_frame", b"ZLIB" + struct.pack(">Q", 1 << 60) + data),
    ],
    ids=["SHF_COMPRESSED", "zdebug"],
)
def test_a_zlib_bomb_is_unpacked_to_its_bound_only(pack: Callable[[bytes], Part]) -> None:
    packer = zlib.compressobj(1)
    first, again = (packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    bomb = first + again * 20 + packer.flush()
    assert len(image(pack(bomb)).debug_section("frame")) <= 1 << 28


def test_a_symbol_table_of_2_to_the_40() -> None:
    data = bytearray(
        write_elf(
            X86_64, [Part(".symtab", bytes(48), SHT_SYMTAB, link=2), Part(".strtab", b"\0", SHT_STRTAB)]
        )
    )
    table = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, table + 64 + 32, 1 << 40)
    assert FunctionNames(ElfImage(memoryview(data), "a.so")).find(0x1000) is None
    assert ElfImage(memoryview(data), "a.so").section(".symtab") is None


def test_names_that_unfold() -> None:
    """A hundred mangled names of 127 characters, each of which would become 428,084."""
    substitutions = [b"S0_", *(b"S%c_" % digit for digit in b"123456789")]
    name = b"_Z1f1aIiiE" + b"".join(b"S_I" + substitution * 3 + b"E" for substitution in substitutions[:9])
    strings, table = bytearray(b"\0"), bytearray(24)
    for i in range(100):
        table += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, 0x1000 + 16 * i, 16)
        strings += name + b"\0"
    names = FunctionNames(
        image(Part(".symtab", bytes(table), SHT_SYMTAB, link=2), Part(".strtab", bytes(strings), SHT_STRTAB))
    )  # fmt: skip
    with within(5):
        found = [names.find(0x1000 + 16 * i) for i in range(100)]
    assert {location and location.function for location in found} == {name.decode()}


def test_a_long_expression_is_not_repeated_in_its_error() -> None:
    with pytest.raises(UnwindError) as raised:
        evaluate(b"\x96" * 100 + b"\x22" + bytes(1 << 16), Machine())
    assert len(str(raised.value)) < 500


def test_hundred_thousand_mappings_under_ten_thousand() -> None:
    lower = [Mapping(i << 13, (i << 13) + 0x1000, "r-xp", 0, "a") for i in range(100_000)]
    upper = [Mapping((i << 13) + 0x400, (i << 13) + 0x800, "r-xp", 0, "b") for i in range(10_000)]
    with within(10):
        assert len(layered(lower, upper).mappings) == 100_000 + 2 * 10_000


def folder_with(folder: Path, maps: bytes, registers: bytes = b"rip: 40100190\nrsp: 7000000\n") -> Path:
    (folder / "regs.txt").write_bytes(registers)
    (folder / "maps.txt").write_bytes(maps)
    (folder / "stack.data").write_bytes(bytes(64))
    return folder


def test_a_mapping_up_to_the_last_address(tmp_path: Path) -> None:
    maps = b"ffffffffffff0000-10000000000000000 r-xp 0 0:0 0 /x\n"
    frames, _ = Snapshot(folder_with(tmp_path, maps)).unwind()
    assert len(frames) == 1


@pytest.mark.parametrize(
    "maps",
    [b"1000-2000 r-xp 0 0:0 0 /x\n" * 300_000, b"2000-1000 r-xp 0 0:0 0 /x\n", b"A" * (1 << 27)],
    ids=["many", "reversed", "one-long-line"],
)
def test_maps_that_are_none(tmp_path: Path, maps: bytes) -> None:
    with within(3), pytest.raises(UnwindError) as raised:
        Snapshot(folder_with(tmp_path, maps))
    assert len(str(raised.value)) < 1000


def test_an_xz_stream_of_many_small_ones() -> None:
    assert image(Part(".gnu_debugdata", lzma.compress(b"x") * 10_000)).mini_debuginfo is None


def test_names_that_would_write_to_the_terminal(tmp_path: Path) -> None:
    """A function's and a file's name that clear the screen, and one that begins a line of its own."""
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 0x2000)
    parts = [
        Part(".text", b"\xc3" * 0x1000, flags=6),
        Part(".symtab", symbols, SHT_SYMTAB, link=3),
        Part(".strtab", b"\0f\x1b[2J\r\nroot\0", SHT_STRTAB),
    ]
    (tmp_path / "a\x1b[2J\x9b").write_bytes(write_elf(X86_64, parts))
    folder_with(tmp_path, b"40100000-40102000 r-xp 0 0:0 0 /a\x1b[2J\xc2\x9b\n")
    result = CliRunner().invoke(unwind, [str(tmp_path)])
    assert result.exit_code == 0 and "f\\x1b[2J" in result.output and "/a\\x1b[2J" in result.output
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.output)
