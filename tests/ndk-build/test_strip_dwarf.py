"""An object without its DWARF still links and runs, and holds the same code."""

import subprocess
from pathlib import Path

import pytest

from tests.support.gcc import gcc, ndk_build

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
