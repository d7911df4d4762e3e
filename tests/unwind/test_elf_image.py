"""Unpacked section contents: compressed debug sections, mini debug info."""

from __future__ import annotations

import lzma
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import Module, elf_image
from memleak_android.unwind.cfi.rules import UnwindRow
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.trace import Method

SOURCE = "int g(int*); int f(int n) { int a[40]; a[n] = n; return g(a) + a[1] + (n ? f(n - 1) : 0); }"
NO_EH = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]


def run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same code with .eh_frame (eh.so) and with .debug_frame only (debug.so)."""
    if shutil.which("gcc") is None or shutil.which("objcopy") is None:
        pytest.skip("needs gcc and objcopy (apt-get install gcc binutils)")
    path = tmp_path_factory.mktemp("elf_image")
    (path / "a.c").write_text(SOURCE)
    common = ["-O2", "-g", "-shared", "-fPIC"]
    run("gcc", *common, "-o", path / "eh.so", path / "a.c")
    run("gcc", *common, *NO_EH, "-o", path / "debug.so", path / "a.c")
    return path


def rows_of_f(path: Path, listed: Path) -> list[UnwindRow]:
    match = re.search(r"^([0-9a-f]+) ([0-9a-f]+) T f$", run("nm", "-S", listed), re.MULTILINE)
    assert match is not None
    start, size = int(match[1], 16), int(match[2], 16)
    found = [Module.from_path(path).table.row_at(vaddr) for vaddr in range(start, start + size)]
    return [row for row in found if row is not None]


def plain(rows: list[UnwindRow]) -> list[object]:
    return [(row.cfa_register, row.cfa_offset, row.rules) for row in rows]


def with_section(folder: Path, source: str, name: str, contents: bytes, to: str) -> Path:
    (folder / "section").write_bytes(contents)
    run("objcopy", "--add-section", f"{name}={folder / 'section'}", folder / source, folder / to)
    return folder / to


def debug_frame_of(folder: Path) -> bytes:
    run("objcopy", "-O", "binary", "--only-section=.debug_frame", "--set-section-flags", ".debug_frame=alloc", folder / "debug.so", folder / "raw")  # fmt: skip
    return (folder / "raw").read_bytes()


def stripped(folder: Path) -> None:
    run("strip", "--strip-all", "-o", folder / "stripped.so", folder / "debug.so")


def test_the_older_compressed_form(folder: Path) -> None:
    """.zdebug_frame: "ZLIB", the size, a zlib stream."""
    stripped(folder)
    data = debug_frame_of(folder)
    packed = b"ZLIB" + struct.pack(">Q", len(data)) + zlib.compress(data)
    path = with_section(folder, "stripped.so", ".zdebug_frame", packed, "zdebug.so")
    rows = rows_of_f(path, folder / "debug.so")
    assert plain(rows) == plain(rows_of_f(folder / "eh.so", folder / "debug.so")) and len(rows) > 20
    assert {row.method for row in rows} == {Method.DEBUG_FRAME}
    broken = with_section(folder, "stripped.so", ".zdebug_frame", packed[:30], "broken.so")
    assert rows_of_f(broken, folder / "debug.so") == []


def test_hostile_zstd_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setattr(elf_image, "_INFLATED_MAX", 3 << 20)
    packed = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    assert len(elf_image._unpack_zstd(packed)) == 3 << 20
    assert elf_image._unpack_zstd(packed[:-3]) in (b"", bytes(3 << 20))
    assert elf_image._unpack_zstd(b"no zstd") == b""


def test_llds_section_type_for_eh_frame(folder: Path) -> None:
    """SHT_X86_64_UNWIND, without which a non-PIE clang cannot be stepped; by the section alone, not by the header."""
    data = bytearray((folder / "eh.so").read_bytes())
    shoff, phoff = (int.from_bytes(data[at : at + 8], "little") for at in (40, 32))
    names = "".join(run("readelf", "-SW", folder / "eh.so").splitlines())
    numbers = re.findall(r"\[ *(\d+)\] \.eh_frame(?:_hdr)? ", names)
    assert len(numbers) == 2
    for number in map(int, numbers):
        data[shoff + 64 * number + 4 : shoff + 64 * number + 8] = (0x70000001).to_bytes(4, "little")
    for i in range(int.from_bytes(data[56:58], "little")):
        at = phoff + 56 * i
        if data[at : at + 4] == (0x6474E550).to_bytes(4, "little"):
            data[at : at + 4] = bytes(4)  # no PT_GNU_EH_FRAME
    (folder / "lld.so").write_bytes(data)
    rows = rows_of_f(folder / "lld.so", folder / "debug.so")
    assert rows == rows_of_f(folder / "eh.so", folder / "debug.so") and len(rows) > 20


def test_mini_debuginfo_has_rules_at_the_outer_files_vaddrs(folder: Path) -> None:
    stripped(folder)
    run("objcopy", "--only-keep-debug", folder / "debug.so", folder / "mini")
    packed = lzma.compress((folder / "mini").read_bytes())
    path = with_section(folder, "stripped.so", ".gnu_debugdata", packed, "mini.so")
    rows = rows_of_f(path, folder / "debug.so")
    assert plain(rows) == plain(rows_of_f(folder / "eh.so", folder / "debug.so")) and len(rows) > 20
    assert {row.method for row in rows} == {Method.DEBUGDATA}


@pytest.mark.parametrize("packed", [b"", b"\xfd7zXZ\0", lzma.compress(b"not an ELF file"), lzma.compress(bytes(100))[:-9]])  # fmt: skip
def test_damaged_mini_debuginfo_loses_nothing(folder: Path, packed: bytes) -> None:
    path = with_section(folder, "eh.so", ".gnu_debugdata", packed or b"\0", "damaged.so")
    module = Module.from_path(path)
    assert module.mini_debuginfo is None
    assert len(rows_of_f(path, folder / "debug.so")) > 20


def test_an_xz_bomb_is_not_unpacked(folder: Path) -> None:
    """320 MB of zeros in 50 KB: given up at the bound."""
    packer = lzma.LZMACompressor(preset=0)
    bomb = b"".join(packer.compress(bytes(1 << 24)) for _ in range(20)) + packer.flush()
    path = with_section(folder, "eh.so", ".gnu_debugdata", bomb, "bomb.so")
    assert Module.from_path(path).mini_debuginfo is None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_xz_gives_an_image_or_none(data: st.DataObject) -> None:
    small = Path("/usr/bin/true")
    if not small.exists():
        pytest.skip(f"{small} is not on this machine")
    packed = bytearray(lzma.compress(small.read_bytes()[:4096]))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    outer = ElfImage(memoryview(small.read_bytes()), "true")
    section = type(outer.sections[0])(".gnu_debugdata", 0, len(outer.data), len(packed))
    outer.data = memoryview(bytes(outer.data) + bytes(packed))
    outer.sections = (*outer.sections, section)
    inner = outer.mini_debuginfo()
    assert inner is None or inner.machine == outer.machine
