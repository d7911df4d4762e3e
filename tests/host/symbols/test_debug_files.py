"""Debug files that .gnu_debuglink names: what they cost, and which are accepted."""

import os
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.profile.profile import SymbolClass
from memleak_android.host.symbols import debug_files
from memleak_android.host.symbols.symbol_table import SymbolTable
from memleak_android.host.symbols.symbolizer import NAMELESS, Symbolizer
from tests.support.oracles.symbols import FileModule, need

NO_BUILD_ID = "--remove-section=.note.gnu.build-id"


def linked(program: Path, folder: Path, *options: str) -> tuple[FileModule, Path]:
    """A stripped program with a link, and the debug file beside it. options: for objcopy, of the program."""
    stripped, debug = folder / "program", folder / "program.debug"
    objcopy = need("objcopy")
    subprocess.run([objcopy, "--only-keep-debug", program, debug], check=True)
    link = f"--add-gnu-debuglink={debug}"
    subprocess.run([objcopy, "--strip-all", link, *options, program, stripped], check=True)
    return FileModule.open(stripped), debug


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what a CRC was computed of; more than 1 MB is not read."""
    sizes: list[int] = []
    crc32 = zlib.crc32

    def count(data: memoryview) -> int:
        sizes.append(len(data))
        return crc32(data[: 1 << 20])

    monkeypatch.setattr(debug_files.zlib, "crc32", count)
    return sizes


def test_a_build_id_spares_the_checksum(program: Path, checked: list[int], tmp_path: Path) -> None:
    module, _ = linked(program, tmp_path)
    assert Symbolizer().symbol_class(module) is SymbolClass.LINES
    assert checked == []


@pytest.mark.parametrize("options", [[], [NO_BUILD_ID]], ids=["build-id", "no build-id"])
def test_a_sparse_file_is_not_read_for_its_checksum(
    options: list[str], program: Path, checked: list[int], tmp_path: Path
) -> None:
    """It stores some kB, and reading what it claims to hold takes half an hour."""
    module, debug = linked(program, tmp_path, *options)
    if options:
        os.truncate(debug, 1 << 42)
        assert Symbolizer().symbol_class(module) is not SymbolClass.LINES
    else:
        other = tmp_path / "other"
        other.mkdir()
        _, unlike = linked(Path("/bin/true"), other)
        unlike.replace(debug)
        os.truncate(debug, 1 << 42)
        symbolizer = Symbolizer()
        assert symbolizer.symbol_class(module) is not SymbolClass.LINES
        assert str(debug) in " ".join(symbolizer.notes)
    assert checked == []


def test_a_module_without_memory_for_its_tables_has_no_names(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one of many: the session goes on."""
    table = SymbolTable

    def without_memory(files: list[object]) -> SymbolTable:
        if files:
            raise MemoryError
        return table([])

    monkeypatch.setattr("memleak_android.host.symbols.symbolizer.SymbolTable", without_memory)
    (chain,) = Symbolizer().resolve(FileModule.open(program), np.array([0x1000], np.uint64))
    assert chain == NAMELESS


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("without", ["debug file", "module", "debug file, module"])
def test_what_has_no_build_id_needs_the_checksum(
    without: str, is_changed: bool, program: Path, tmp_path: Path
) -> None:
    """The module's own build-id says nothing about a debug file that has none."""
    module, debug = tmp_path / "module", tmp_path / ".debug" / "program.debug"
    debug.parent.mkdir()
    link = f"--add-gnu-debuglink={debug}"
    for path, options in ((debug, ["--only-keep-debug"]), (module, ["--strip-all", link])):
        is_bare = ("debug file" if path == debug else "module") in without
        options += [NO_BUILD_ID] * is_bare
        subprocess.run([need("objcopy"), *options, program, path], check=True)
        assert (FileModule.open(path).build_id == "") == is_bare
    if is_changed:
        debug.write_bytes(debug.read_bytes() + b"x")
    symbolizer = Symbolizer()
    is_used = symbolizer.symbol_class(FileModule.open(module)) is SymbolClass.LINES
    assert is_used == (not is_changed)
    note = f"{debug} does not match the checksum in the .gnu_debuglink of module; not used"
    assert symbolizer.notes == ((note,) if is_changed else ())
