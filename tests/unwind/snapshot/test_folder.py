"""Snapshot folders: which ELF a mapping shows, what may be missing, and folders made to mislead."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.unwind import AddressSpace, Mapping, TraceEnd, UnwindError
from memleak_android.unwind.maps import layered
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotOptions
from memleak_android.unwind.snapshot.mapped_elf import ElfFinder
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
