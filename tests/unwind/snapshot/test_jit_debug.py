"""Code that a JIT compiler announces to debuggers: the captured case of jit_map_arm, its files as ART would hold them."""

import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.unwind import arch_by_name
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.maps import AddressSpace, Mapping
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotOptions
from memleak_android.unwind.snapshot.jit_debug import jit_modules
from memleak_android.unwind.trace import Method
from tests.support.corpus import case_folder, expectation

CACHE = "d0250000-d0260000 r-xp 0 00:00 0 anonymous:d0250000\n"
LIBART_DATA = "e4ae8000-e4af3000 rw-p 479000 00:00 0 libart.so\n"
DESCRIPTOR = 0xE4AF1068  # readelf --dyn-syms: vaddr 0x48f068
ENTRIES = (0xD1000000, 0xD1000020)
SYMFILES = (0xD2000000, 0xD2001000)


def jit_case(tmp_path: Path, *, circle: bool = False) -> Path:
    """The case with its two symbol files in captured memory instead of beside it."""
    case = case_folder("jit_map_arm")
    for name in ("libart.so", "libc.so", "regs.txt", "stack.data"):
        shutil.copyfile(case / name, tmp_path / name)
    (tmp_path / "maps.txt").write_text((case / "maps.txt").read_text() + CACHE + LIBART_DATA)
    files = [(case / f"jit_map{i}.so").read_bytes() for i in range(2)]
    last = ENTRIES[0] if circle else 0
    pieces = {
        DESCRIPTOR: struct.pack("<IIII", 1, 0, 0, ENTRIES[0]),
        ENTRIES[0]: struct.pack("<IIIIQ", ENTRIES[1], 0, SYMFILES[0], 0, len(files[0])),
        ENTRIES[1]: struct.pack("<IIIIQ", last, ENTRIES[0], SYMFILES[1], 0, len(files[1])),
        SYMFILES[0]: files[0],
        SYMFILES[1]: files[1],
    }
    for i, (start, data) in enumerate(pieces.items()):
        (tmp_path / f"memory{i}.data").write_bytes(struct.pack("<Q", start) + data)
    return tmp_path


@pytest.mark.parametrize("circle", [False, True])
def test_frames_go_through_announced_code(tmp_path: Path, circle: bool) -> None:
    pinned = expectation(case_folder("jit_map_arm"))["frames"]
    frames, _ = Snapshot(jit_case(tmp_path, circle=circle)).unwind()
    assert [hex(f.lookup) for f in frames] == [f["pc"] for f in pinned]
    assert [hex(f.sp) for f in frames] == [f["sp"] for f in pinned]
    assert [f.method for f in frames[:3]] == [Method.REGISTERS, Method.JIT, Method.JIT]
    named_by = [f.named_by for f in frames[:2]]
    assert [found and (found[0].path, found[1]) for found in named_by] == [
        ("[jit:d2000000]", 0xD025C788),
        ("[jit:d2001000]", 0xD025CDD5),
    ]
    # where it lies is what the process has there
    assert [f.mapping.path for f in frames[:2] if f.mapping] == ["anonymous:d0250000"] * 2
    assert [f.rel_pc for f in frames[:2]] == [0xC788, 0xCDD5]


def test_without_them_the_stack_ends_there(tmp_path: Path) -> None:
    frames, _ = Snapshot(jit_case(tmp_path), SnapshotOptions(jit_debug=False)).unwind()
    assert len(frames) < len(expectation(case_folder("jit_map_arm"))["frames"])


@given(st.dictionaries(st.integers(0, 15), st.binary(max_size=48), max_size=8), st.integers(0, 1 << 64))
def test_lists_of_anything_end(pieces: dict[int, bytes], size: int) -> None:
    arch = arch_by_name("arm32")
    assert arch is not None
    libart = Module.from_path(case_folder("jit_map_arm") / "libart.so")
    mapping = Mapping(0xE4AE8000, 0xE4AF3000, "rw-p", 0x479000, "libart.so")
    regions = [(16 * found, memoryview(data)) for found, data in pieces.items()]
    regions.append((DESCRIPTOR, memoryview(struct.pack("<IIII", 1, 0, 0, 16))))
    regions.append((256, memoryview(struct.pack("<IIIIQ", 256, 0, 0, 0, size & (1 << 64) - 1))))
    space = AddressSpace([mapping])
    assert len(list(jit_modules(arch, space, MemoryRegions(regions), lambda m: libart))) <= 1


@pytest.mark.parametrize(
    ("name", "file", "entry"),
    [
        ("x86", "debug_frame_first_x86/waiter", "<IIIQ"),  # a u64 stands at a multiple of 4
        ("arm32", "jit_map_arm/jit_map0.so", "<IIIIQ"),
        ("x86_64", "eh_frame_hdr_begin_x86_64/unwind_test64", "<QQQQ"),
        ("arm64", "apk_rx_arm64/run", "<QQQQ"),
    ],
)
def test_entries_lie_as_each_architecture_aligns_them(name: str, file: str, entry: str) -> None:
    folder, _, base = file.partition("/")
    symfile = (case_folder(folder) / base).read_bytes()
    arch = arch_by_name(name)
    assert arch is not None
    word = "Q" if arch.word_bytes == 8 else "I"
    fields = [0, 0, 0x20000, len(symfile)] if entry.count("I") < 4 else [0, 0, 0x20000, 0, len(symfile)]
    regions = {
        DESCRIPTOR: struct.pack(f"<II{word}{word}", 1, 0, 0, 0x10000),
        0x10000: struct.pack(entry, *fields),
        0x20000: symfile,
    }
    memory = MemoryRegions([(start, memoryview(data)) for start, data in regions.items()])
    libart = Module.from_path(case_folder("jit_map_arm") / "libart.so")
    space = AddressSpace([Mapping(0xE4AE8000, 0xE4AF3000, "rw-p", 0x479000, "libart.so")])
    (found,) = jit_modules(arch, space, memory, lambda m: libart)
    assert found.arch is arch and len(found.data) == len(symfile)
