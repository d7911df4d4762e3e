"""Objects without their DWARF and libraries without some entries of .dynamic hold the rest, link and load."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support.gcc import NDK_BUILD, gcc, ndk_build

PROGRAM = """
static int table[] = { 2, 3, 5, 7 };
int (*volatile choice)(int) = 0;
static int pick(int i) { return table[i]; }
int main(void) { choice = pick; return choice(3) - 7; }
"""


strip_dwarf = ndk_build("strip_dwarf")


def test_object_links_and_runs(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(PROGRAM)
    gcc("-std=gnu17", "-g", "-O1", "-c", "a.c", "-o", "a.o", cwd=tmp_path)
    whole = (tmp_path / "a.o").read_bytes()
    stripped = strip_dwarf.strip(whole)
    assert len(stripped) < len(whole)
    assert b"GNU C17" in whole and b"GNU C17" not in stripped  # DW_AT_producer
    (tmp_path / "b.o").write_bytes(stripped)
    gcc("b.o", "-o", "b", cwd=tmp_path)
    assert subprocess.run([tmp_path / "b"], check=False).returncode == 0


def test_anything_else_is_refused() -> None:
    for image in (b"", b"\x7fELF\x01\x01" + bytes(100), b"#!/bin/sh\n"):
        with pytest.raises(ValueError, match="not a little-endian 64-bit ELF object"):
            strip_dwarf.strip(image)


DT_SONAME, DT_FLAGS = 14, 30


def tags(path: Path) -> list[tuple[object, int]]:
    """Up to the end that loaders see."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        return [(tag.entry.d_tag, tag.entry.d_val) for tag in section.iter_tags()]


def test_the_library_loads_without_them(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int seven(void) { return 7; }\n")
    library = tmp_path / "liba.so"
    flags = ["-shared", "-fPIC", "-Wl,-z,now", "-Wl,-soname,liba.so"]
    gcc(*flags, "a.c", "-o", library, cwd=tmp_path)
    before, bytes_before = tags(library), library.stat().st_size
    subprocess.run(
        [sys.executable, NDK_BUILD / "drop_dynamic_tags.py", library, str(DT_SONAME), hex(DT_FLAGS)],
        check=True,
    )
    dropped = {"DT_SONAME", "DT_FLAGS"}
    assert dropped <= {name for name, _ in before}
    assert tags(library) == [entry for entry in before if entry[0] not in dropped]
    assert library.stat().st_size == bytes_before
    assert ctypes.CDLL(str(library)).seven() == 7


@pytest.mark.parametrize("image", [b"", b"!<arch>\n", b"\x7fELF\x01\x01" + bytes(60)])
def test_what_it_does_not_know_is_refused(image: bytes) -> None:
    with pytest.raises(ValueError, match="not a little-endian 64-bit ELF file"):
        ndk_build("drop_dynamic_tags").drop(image, {DT_FLAGS})
