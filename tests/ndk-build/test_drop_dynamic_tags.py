"""A library without some entries of .dynamic has all the others, in their order, and loads."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support.gcc import NDK_BUILD, gcc, ndk_build

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
