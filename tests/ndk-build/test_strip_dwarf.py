"""An object without its DWARF still links and runs, and holds the same code."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.gcc import gcc

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
static int table[] = { 2, 3, 5, 7 };
int (*volatile choice)(int) = 0;
static int pick(int i) { return table[i]; }
int main(void) { choice = pick; return choice(3) - 7; }
"""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("strip_dwarf", ROOT / "ndk-build" / "strip_dwarf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


strip_dwarf = load()


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
