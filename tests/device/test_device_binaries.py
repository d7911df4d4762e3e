"""The device binaries as loaders see them: one machine each, nothing needed, every page size, no writable code."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from memleak_android.host import prebuilt
from memleak_android.host.machine.binaries import ABI_OF_ARCH
from memleak_android.unwind.arch import arch_by_name

PREBUILT = Path(str(prebuilt.__file__)).resolve().parent
BINARIES = [(arch, name) for arch in ABI_OF_ARCH for name in ("memleakd", "libmemleak.so")]
PAGE_BYTES_MAX = 16384  # of Android (developer.android.com/guide/practices/page-sizes)
AARCH64_FEATURES = 0xC0000000  # GNU_PROPERTY_AARCH64_FEATURE_1_AND (AAELF64 §7.3): 1 = BTI, 2 = PAC
WRITABLE, EXECUTABLE = 2, 1


@pytest.fixture(params=BINARIES, ids=lambda one: "-".join(one))
def binary(request: pytest.FixtureRequest) -> Iterator[tuple[str, ELFFile]]:
    """Architecture and file; skips those that are not built, as `make device` builds this machine's only."""
    arch, name = request.param
    path = PREBUILT / ABI_OF_ARCH[arch] / name
    if not path.exists():
        pytest.skip(f"{path.name} is not built for {arch} (make device ABIS={ABI_OF_ARCH[arch]})")
    with path.open("rb") as stream:
        yield arch, ELFFile(stream)


def segments(elf: ELFFile, kind: str) -> list[object]:
    return [one for one in elf.iter_segments() if one["p_type"] == kind]


def dynamic_tags(elf: ELFFile) -> dict[str, object]:
    section = elf.get_section_by_name(".dynamic")
    return {tag["d_tag"]: tag for tag in section.iter_tags()} if section else {}


def test_machine(binary: tuple[str, ELFFile]) -> None:
    arch, elf = binary
    known = arch_by_name(arch)
    assert known is not None
    machine = elf.get_machine_arch()
    assert {"x64": 62, "AArch64": 183, "ARM": 40}[machine] == known.elf_machine
    assert elf.elfclass == 8 * known.word_bytes


def test_nothing_is_needed_and_nothing_relocated_in_code(binary: tuple[str, ELFFile]) -> None:
    tags = dynamic_tags(binary[1])
    assert not segments(binary[1], "PT_INTERP")
    assert not {"DT_NEEDED", "DT_TEXTREL", "DT_RPATH", "DT_RUNPATH"} & set(tags)


def test_segments_fit_every_page_size(binary: tuple[str, ELFFile]) -> None:
    loaded = segments(binary[1], "PT_LOAD")
    assert loaded
    for one in loaded:
        assert one["p_align"] >= PAGE_BYTES_MAX
        assert not (one["p_flags"] & WRITABLE and one["p_flags"] & EXECUTABLE)
        assert (one["p_vaddr"] - one["p_offset"]) % one["p_align"] == 0
    assert [one["p_flags"] & EXECUTABLE for one in segments(binary[1], "PT_GNU_STACK")] == [0]


def test_both_hash_tables_and_a_name(binary: tuple[str, ELFFile]) -> None:
    """Linkers before API 23 read DT_HASH only; the build-id is how a session tells what ran."""
    elf = binary[1]
    assert elf.get_section_by_name(".note.gnu.build-id") is not None
    tags = dynamic_tags(elf)
    if tags:
        assert {"DT_HASH", "DT_GNU_HASH"} <= set(tags)
        assert tags["DT_SONAME"].soname == "libmemleak.so"


@pytest.mark.parametrize("binary", [("arm64", "libmemleak.so")], indirect=True)
def test_arm64_code_in_processes_is_protected(binary: tuple[str, ELFFile]) -> None:
    """Signed return addresses and landing pads, but no tag of them, of which Android's linkers before 11 warn in every program."""
    elf = binary[1]
    note = elf.get_section_by_name(".note.gnu.property").data()
    kind, _, features = struct.unpack_from("<III", note, 16)  # behind the header and the name
    assert (kind, features) == (AARCH64_FEATURES, 3)
    assert not [tag for tag in dynamic_tags(elf) if "BTI" in str(tag) or tag == 0x70000001]


def test_no_path_of_the_machine_that_built_it(binary: tuple[str, ELFFile]) -> None:
    binary[1].stream.seek(0)
    assert str(PREBUILT.parents[1]).encode() not in binary[1].stream.read()
