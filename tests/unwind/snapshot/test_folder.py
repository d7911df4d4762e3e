"""Snapshot folders: which ELF a mapping shows, what may be missing or misleads, and code that a JIT announces."""

import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.unwind import AddressSpace, Mapping, TraceEnd, UnwindError, arch_by_name
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.maps import layered
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotOptions
from memleak_android.unwind.snapshot.jit_debug import jit_modules
from memleak_android.unwind.snapshot.mapped_elf import ElfFinder
from memleak_android.unwind.trace import Method
from tests.support.corpus import case_folder, expectation, options_of

PAGE = 4096
APK_OFFSET = 5 * PAGE


def arm64_elf(code_pages: int = 1) -> bytes:
    """Two PT_LOAD: headers at vaddr 0, code at vaddr 0x3000 from file offset 0x1000 on (two biases)."""
    size = code_pages * PAGE
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    header += struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, PAGE, PAGE, PAGE)
    header += struct.pack("<IIQQQQQQ", 1, 5, PAGE, 3 * PAGE, 3 * PAGE, size, size, PAGE)
    code = struct.pack("<I", 0xD65F03C0) * (size // 4)  # ret
    return header.ljust(PAGE, b"\0") + code


def maps(
    *, offset: int = 0, execute_only: bool = False, holes: bool = False, name: str = "a.so"
) -> AddressSpace:
    base, rights = 0x7000000000, "--xp" if execute_only else "r-xp"
    found = [
        Mapping(base, base + PAGE, "r--p", offset, name),
        Mapping(base + 3 * PAGE, base + 4 * PAGE, rights, offset + PAGE, name),
    ]
    if holes:
        found.append(Mapping(base + PAGE, base + 3 * PAGE, "---p", 0, ""))
    return AddressSpace(found)


def code_of(space: AddressSpace) -> Mapping:
    return next(m for m in space.mappings if m.is_executable)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("execute_only", [False, True])
@pytest.mark.parametrize("offset", [0, APK_OFFSET])
def test_code_in_a_segment_of_its_own(tmp_path: Path, offset: int, execute_only: bool, holes: bool) -> None:
    """A library, or one in an APK: then its ELF begins where the read-only mapping before does."""
    (tmp_path / "a.so").write_bytes(b"PK" * (offset // 2) + arm64_elf())
    space = maps(offset=offset, execute_only=execute_only, holes=holes)
    code = code_of(space)
    found = ElfFinder(tmp_path, space, None).find(code)
    assert found.module is not None and not found.from_memory
    assert found.start_offset == offset
    assert found.vaddr(code, code.start + 0x10) == 3 * PAGE + 0x10


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("offset", [0, APK_OFFSET])
def test_the_same_from_memory(tmp_path: Path, offset: int, holes: bool) -> None:
    elf = arm64_elf()
    space = maps(offset=offset, holes=holes)
    code = code_of(space)
    regions = [(space.mappings[0].start, memoryview(elf[:PAGE])), (code.start, memoryview(elf[PAGE:]))]
    found = ElfFinder(tmp_path, space, MemoryRegions(regions)).find(code)
    assert found.module is not None and found.from_memory and found.start_offset == offset
    assert found.vaddr(code, code.start + 0x10) == 3 * PAGE + 0x10
    assert found.module.bytes_at(3 * PAGE, 4) == elf[PAGE : PAGE + 4]


@pytest.mark.parametrize("from_memory", [False, True])
@pytest.mark.parametrize("offset", [0, APK_OFFSET])
def test_code_that_was_patched_lies_in_several_mappings(
    tmp_path: Path, offset: int, from_memory: bool
) -> None:
    """A page in the middle, or at the end, has rights of its own; another library of the APK follows."""
    elf = arm64_elf(code_pages=3)
    data = b"PK" * (offset // 2) + elf + arm64_elf()
    base, name = 0x7000000000, "a.apk"
    pages = [(0, 0, "r--p"), (3, 1, "r-xp"), (4, 2, "rwxp"), (5, 3, "r-xp"), (9, 4, "r--p"), (12, 5, "r-xp")]
    space = AddressSpace(
        Mapping(base + page * PAGE, base + (page + 1) * PAGE, rights, offset + file_page * PAGE, name)
        for page, file_page, rights in pages
    )
    regions = [(m.start, memoryview(data[m.file_offset : m.file_offset + PAGE])) for m in space.mappings]
    if not from_memory:
        (tmp_path / name).write_bytes(data)
    finder = ElfFinder(tmp_path, space, MemoryRegions(regions if from_memory else ()))
    for mapping in space.mappings[1:4]:
        found = finder.find(mapping)
        assert found.module is not None and found.start_offset == offset
        assert found.vaddr(mapping, mapping.start) == mapping.start - base
    if offset:
        other = finder.find(space.mappings[5])
        assert other.start_offset == offset + 4 * PAGE
        assert other.vaddr(space.mappings[5], space.mappings[5].start) == 3 * PAGE


def test_an_elf_that_begins_at_its_mapping(tmp_path: Path) -> None:
    (tmp_path / "a.apk").write_bytes(bytes(APK_OFFSET) + arm64_elf())
    space = AddressSpace([Mapping(0x10000, 0x12000, "r-xp", APK_OFFSET, "a.apk")])
    found = ElfFinder(tmp_path, space, None).find(space.mappings[0])
    assert found.module is not None and found.start_offset == APK_OFFSET


def test_without_an_elf_positions_count_from_the_mapping(tmp_path: Path) -> None:
    """Of a file that is none, and of one that is missing: then from the read-only mapping before."""
    space = maps(offset=APK_OFFSET)
    code = code_of(space)
    missing = ElfFinder(tmp_path, space, MemoryRegions(())).find(code)
    assert missing.module is None and missing.start_offset == APK_OFFSET + PAGE
    assert missing.vaddr(code, code.start + 0x10) == PAGE + 0x10
    (tmp_path / "a.so").write_bytes(bytes(APK_OFFSET + 2 * PAGE))
    nothing = ElfFinder(tmp_path, space, MemoryRegions(())).find(code)
    assert nothing.module is None
    assert nothing.vaddr(code, code.start + 0x10) == 0x10


def test_upper_mappings_lie_over_lower_ones() -> None:
    low = [Mapping(0, 100, "r", 1000, "a"), Mapping(100, 200, "r", 0, "b")]
    top = [Mapping(10, 20, "x", 0, "t"), Mapping(90, 110, "x", 0, "u"), Mapping(95, 120, "x", 7, "v")]
    found = [(m.start, m.end, m.file_offset, m.path) for m in layered(low, top).mappings]
    assert found == [
        (0, 10, 1000, "a"),
        (10, 20, 0, "t"),
        (20, 90, 1020, "a"),
        (90, 110, 0, "u"),
        (110, 120, 22, "v"),
        (120, 200, 20, "b"),
    ]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12), st.integers(0, 12))
def test_layers_never_overlap_and_lose_nothing(spans: list[tuple[int, int]], cut: int) -> None:
    mappings = [Mapping(start, start + size, "r", 0, str(i)) for i, (start, size) in enumerate(spans)]
    lower, upper = mappings[:cut], mappings[cut:]
    space = layered(lower, upper)
    for before, after in zip(space.mappings, space.mappings[1:], strict=False):
        assert before.end <= after.start
    tops = {str(i) for i in range(cut, len(mappings))}
    for address in range(82):
        holding = {m.path for m in mappings if m.start <= address < m.end}
        found = space.find(address)
        assert (found.path if found else None) in (holding & tops or holding or {None})


def test_memory_that_reaches_over_the_end_of_addresses() -> None:
    regions = MemoryRegions([((1 << 64) - 8, memoryview(bytes(8))), (0, memoryview(b"abcd"))])
    assert regions.read((1 << 64) - 8, 8) == 0
    with pytest.raises(UnwindError):
        regions.read((1 << 64) - 4, 8)
    assert regions.image(0, 16) == b"abcd"


def test_many_frames_stop_at_the_limit() -> None:
    folder = case_folder("photos_reset_arm64")
    options = options_of(expectation(folder))
    for limit in range(1, 12):
        frames, end = Snapshot(folder, SnapshotOptions(arch=options.arch, max_frames=limit)).unwind()
        assert len(frames) == limit and end is TraceEnd.MAX_FRAMES


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
