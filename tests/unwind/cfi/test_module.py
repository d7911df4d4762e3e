"""ELF files as modules: real ones, images in memory, and broken ones."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import BadElfError, Mapping, Module, UnsupportedArchError

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


def test_address_of_a_symbol() -> None:
    """Through the bias of this very process's libc."""
    import ctypes

    maps = Path("/proc/self/maps").read_text()
    match = re.search(r"^([0-9a-f]+)-([0-9a-f]+) r-xp ([0-9a-f]+) .* (/\S*libc\.so\.6)$", maps, re.MULTILINE)
    if match is None or shutil.which("nm") is None:
        pytest.skip("needs glibc and nm")
    mapping = Mapping(int(match[1], 16), int(match[2], 16), "r-xp", int(match[3], 16), match[4])
    address = ctypes.cast(ctypes.CDLL(match[4]).malloc, ctypes.c_void_p).value
    assert address is not None
    symbols = subprocess.run(["nm", "-D", match[4]], capture_output=True, text=True, check=True).stdout
    wanted = re.search(r"^([0-9a-f]+) T malloc@", symbols, re.MULTILINE)
    assert wanted is not None
    assert Module.from_path(match[4]).vaddr_of(mapping, address) == int(wanted[1], 16)


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


@pytest.mark.parametrize("flags", ["none", "zlib-gabi", "zstd"])
def test_debug_frame_plain_and_compressed(flags: str, tmp_path: Path) -> None:
    """Without .eh_frame; rows must be those of readelf's reading (here: of the same code's .eh_frame)."""
    compiler = shutil.which("gcc")
    if compiler is None or shutil.which("objcopy") is None:
        pytest.skip("needs gcc and objcopy (apt-get install gcc binutils)")
    function = "int f{0}(int n) {{ int a[40]; a[n] = n; return g(a) + a[1] + (n ? f{0}(n - 1) : 0); }}\n"
    names = ["", *map(str, range(40))]  # so many that packing them makes them smaller
    (tmp_path / "a.c").write_text("int g(int*);\n" + "".join(map(function.format, names)))
    common = ["-O2", "-g", "-shared", "-fPIC", "-o"]
    subprocess.run([compiler, *common, tmp_path / "eh.so", tmp_path / "a.c"], check=True)
    only_debug = [
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
        f"-Wl,--compress-debug-sections={flags}",
    ]
    subprocess.run([compiler, *only_debug, *common, tmp_path / "debug.so", tmp_path / "a.c"], check=True)
    section = Module.from_path(tmp_path / "debug.so").section(".debug_frame")
    assert section is not None and section.is_compressed == (flags != "none")
    rows = []
    for name in ("eh.so", "debug.so"):
        listing = subprocess.run(
            ["nm", "-S", tmp_path / name], capture_output=True, text=True, check=True
        ).stdout
        match = re.search(r"^([0-9a-f]+) ([0-9a-f]+) T f$", listing, re.MULTILINE)
        assert match is not None
        module = Module.from_path(tmp_path / name)
        start, size = int(match[1], 16), int(match[2], 16)
        found = [module.table.row_at(vaddr) for vaddr in range(start, start + size)]
        rows.append([(row.cfa_register, row.cfa_offset, row.rules) for row in found if row])
    assert rows[0] == rows[1] and len(rows[0]) > 20


def test_elf_inside_another_file(image: bytes) -> None:
    """A library in an APK: the mapping's file offset counts from the APK's start."""
    offset = 0x5000
    inside = Module(memoryview(bytes(offset) + image), "base.apk", offset)
    plain = Module.from_bytes(image)
    segment = next(s for s in plain.segments if s.is_executable)
    start = segment.file_offset & ~0xFFF
    alone = Mapping(0x7F0000000000, 0x7F0000010000, "r-xp", start, "true")
    in_apk = Mapping(0x7F0000000000, 0x7F0000010000, "r-xp", start + offset, "base.apk")
    assert inside.vaddr_of(in_apk, 0x7F0000000123) == plain.vaddr_of(alone, 0x7F0000000123)
    assert inside.build_id == plain.build_id != ""


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


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_give_a_module_or_a_typed_error(data: st.DataObject) -> None:
    if not SMALL.exists():
        pytest.skip(f"{SMALL} is not on this machine")
    damaged = bytearray(SMALL.read_bytes())
    whole = Module.from_bytes(bytes(damaged))
    frame, hdr = whole.section(".eh_frame"), whole.section(".eh_frame_hdr")
    assert frame is not None and hdr is not None
    shnum = int.from_bytes(damaged[60:62], "little")
    shoff = int.from_bytes(damaged[40:48], "little")
    spans = [(0, 64), (64, 64 + 56 * 13), (shoff, shoff + 64 * shnum)]
    spans += [(s.file_offset, s.file_offset + s.size) for s in (frame, hdr)]
    for _ in range(data.draw(st.integers(1, 8))):
        start, end = data.draw(st.sampled_from(spans))
        damaged[data.draw(st.integers(start, end - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    try:
        module = Module.from_bytes(bytes(damaged[:cut]))
    except (BadElfError, UnsupportedArchError):
        return
    text = whole.section(".text")
    assert text is not None
    module.table.row_ids(np.arange(text.vaddr, text.vaddr + text.size, 97, dtype=np.uint64))
    mapping = Mapping(0x1000, 0x2000, "r-xp", 0, "x")
    module.bytes_at(module.vaddr_of(mapping, 0x1000), 16)
