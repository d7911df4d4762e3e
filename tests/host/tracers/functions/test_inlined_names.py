"""A function without code of its own is known by its entry in DWARF, not by a name that something else may have."""

import subprocess
from pathlib import Path

import pytest

from memleak_android.host.symbols.debug_files import DebugFileSearch
from memleak_android.host.tracers.functions import inlined
from memleak_android.host.tracers.functions.selection import FunctionTable
from tests.support.oracles.symbols import need

SOURCE = """
static inline __attribute__((always_inline)) int inl(int a) { return a * 3 + 1; }
static inline __attribute__((always_inline)) int inlined_everywhere(int a) { return inl(a) + inl(a + 1); }
struct kind { int field; } variable;
int main(int argc, char **argv) { (void)argv; variable.field = argc; return inlined_everywhere(argc); }
"""

MEMBER = """
namespace shop { struct Cart { int n; inline __attribute__((always_inline)) int total() { return n * 3; } }; }
int main(int argc, char **) { shop::Cart cart{argc}; return cart.total(); }
"""


@pytest.mark.parametrize("packed", ["none", "zlib", "zlib-gnu"])
def test_short_names_and_packed_ones(packed: str, tmp_path: Path) -> None:
    source, program = tmp_path / "inlined.c", tmp_path / "inlined"
    source.write_text(SOURCE)
    words = [need("gcc"), "-g", "-O1", f"-gz={packed}", "-o", program, source]
    subprocess.run(words, check=True)
    table = FunctionTable(str(program), DebugFileSearch(()))
    names = ("inl", "inlined_everywhere", "nl", "everywhere", "a", "kind", "field", "variable", "main")
    assert [name for name in names if table.is_inlined(name) is not False] == list(names[:2])


def test_a_member_and_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, program = tmp_path / "member.cc", tmp_path / "member"
    source.write_text(MEMBER)
    subprocess.run([need("g++"), "-g", "-O1", "-o", program, source], check=True)
    assert FunctionTable(str(program), DebugFileSearch(())).is_inlined("shop::Cart::total")
    with monkeypatch.context() as patched:
        patched.setitem(inlined._BYTES_MAX, "abbrev", 1)
        assert FunctionTable(str(program), DebugFileSearch(())).is_inlined("shop::Cart::total") is None
    image = program.read_bytes()
    abbrev = FunctionTable(str(program), DebugFileSearch(()))._files[0].find(".debug_abbrev")
    assert abbrev is not None
    program.write_bytes(
        image[: abbrev.file_offset] + b"\xff" * abbrev.size + image[abbrev.file_offset + abbrev.size :]
    )
    assert FunctionTable(str(program), DebugFileSearch(())).is_inlined("shop::Cart::total") is None
