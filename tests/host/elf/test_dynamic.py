"""ELF files as the dynamic linker sees them, against readelf; and damaged ones."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from memleak_android.host.elf.dynamic import DT_STRSZ, ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.unwind.elf_headers import PT_DYNAMIC
from tests.support.gcc import gcc

FILES = [
    "/bin/ls",
    "/bin/bash",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib64/ld-linux-x86-64.so.2",
    "/usr/bin/python3",
]


def readelf(option: str, path: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed (Debian: binutils)")
    if not os.path.exists(path):
        pytest.skip(f"no {path} here")
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", FILES)
def test_dynamic_section(path: str) -> None:
    text = readelf("-d", path)
    elf = ElfFile(path)
    assert [elf.soname] == (re.findall(r"\(SONAME\).*\[(.*)\]", text) or [""])
    interpreter = re.findall(r"interpreter: (.*)\]", readelf("-l", path))
    assert [elf.interpreter] == (interpreter or [""])


@pytest.mark.parametrize("path", FILES)
def test_exported_functions(path: str) -> None:
    """Every function that readelf lists, by name, value, size and version mark."""
    expected = set()
    for line in readelf("--dyn-syms", path).splitlines():
        words = line.split()
        if len(words) >= 8 and words[3] in ("FUNC", "IFUNC") and words[6] != "UND":
            name, at, _ = words[7].partition("@")
            is_default = at == "" or "@@" in words[7]
            expected.add((name, int(words[1], 16), int(words[2], 0), is_default, words[3] == "IFUNC"))
    names = {one[0] for one in expected} | {"printf", "no_such_function"}
    found = ElfFile(path).dynamic_functions(names)
    assert {(s.name, s.vaddr, s.size, s.is_default, s.is_indirect) for s in found} == expected


def test_static_symbols(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(
        "static __attribute__((used)) void hidden(void) {}\nint main(void) { return 0; }\n"
    )
    gcc("-o", "main", "main.c", cwd=tmp_path)
    elf = ElfFile(tmp_path / "main")
    (hidden,) = elf.static_functions({"hidden"})
    assert f"{hidden.vaddr:016x}" in readelf("-s", str(tmp_path / "main"))
    assert elf.dynamic_functions({"hidden"}) == []
    subprocess.run(["strip", "main"], cwd=tmp_path, check=True)
    assert ElfFile(tmp_path / "main").static_functions({"hidden"}) == []


def test_file_offsets_of_addresses() -> None:
    path = "/bin/ls"
    elf = ElfFile(path)
    entry = re.search(r"Entry point address:\s+0x([0-9a-f]+)", readelf("-h", path))
    assert entry is not None
    offset = elf.file_offset(int(entry[1], 16))
    assert offset is not None
    text = elf.text_segment(offset)
    assert text is not None and text.file_offset <= offset < text.file_offset + text.file_bytes
    assert elf.text_segment(0) is None
    assert elf.file_offset(2**63) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "too short"),
        (b"#!/bin/sh\n", "too short"),
        (b"x" * 64, "no ELF magic"),
        (b"\x7fELF\x03\x01" + bytes(58), "class 3, byte order 1"),
        (b"\x7fELF\x02\x02" + bytes(58), "class 2, byte order 2"),
    ],
)
def test_no_elf_file(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TargetError) as caught:
        ElfFile(tmp_path / "file")
    assert str(caught.value) == f"{tmp_path}/file cannot be read as an ELF file: {reason}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("library")
    (folder / "a.c").write_text(
        "void *malloc(unsigned long n) { return (void *)n; }\nvoid free(void *p) { (void)p; }\n"
    )
    gcc("-shared", "-fPIC", "-o", "a.so", "a.c", "-Wl,-soname,a", cwd=folder)
    return (folder / "a.so").read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.data())
def test_damaged_files_raise_only_this_error(library: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Header, program headers and the dynamic section are where damage hurts: half the bytes go there."""
    damaged = bytearray(library)
    interesting = st.one_of(st.integers(0, 0x300), st.integers(0, len(library) - 1))
    for _ in range(data.draw(st.integers(1, 12))):
        damaged[data.draw(interesting)] = data.draw(st.integers(0, 255))
    file = tmp_path / "damaged"
    file.write_bytes(
        damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    )
    try:
        elf = ElfFile(file)
        _ = elf.soname, elf.interpreter
        elf.dynamic_functions({"malloc", "free"})
        elf.static_functions({"malloc", "free"})
    except TargetError:
        pass


READERS = {
    "ElfFile": "from memleak_android.host.elf.dynamic import ElfFile as read; use = read.symbol_tables",
    "Module": "from memleak_android.unwind.cfi.module import Module; read = Module.from_path; use = Module.exits.func",
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_another_user_truncates_ends_no_process(
    reader: str, library: bytes, tmp_path: Path
) -> None:
    """Touching a page that a mapped file has lost raises SIGBUS: no exception, the process is gone."""
    file = tmp_path / "a.so"
    file.write_bytes(library)
    file.chmod(0o666)
    script = f"""if True:
        import os, sys
        {READERS[reader]}
        elf = read(sys.argv[1])
        os.truncate(sys.argv[1], 0)
        list(use(elf)), bytes(elf.data)
    """
    done = subprocess.run([sys.executable, "-c", script, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_table_of_any_size_in_a_sparse_file_is_an_error(library: bytes, tmp_path: Path) -> None:
    """DT_STRSZ says 1 TB, and the file, which stores 16 kB, has them: no MemoryError, no copy."""
    file = tmp_path / "a.so"
    file.write_bytes(library)
    elf = ElfFile(file)
    dynamic = next(segment for segment in elf.segments if segment.type == PT_DYNAMIC)
    row = list(elf.dynamic).index(DT_STRSZ)
    with file.open("r+b") as out:
        out.seek(dynamic.file_offset + 16 * row)
        assert int.from_bytes(out.read(8), "little") == DT_STRSZ
        out.seek(dynamic.file_offset + 16 * row + 8)
        out.write((1 << 40).to_bytes(8, "little"))
        out.truncate(1 << 41)
    with pytest.raises(TargetError, match="it has a table of 1,099,511,627,776 bytes"):
        ElfFile(file).dynamic_functions({"malloc"})


def test_a_table_for_which_there_is_no_memory_is_an_error(
    library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.so").write_bytes(library)
    elf = ElfFile(tmp_path / "a.so")

    def view(offset: int, size: int) -> NDArray[np.uint8]:
        raise MemoryError

    monkeypatch.setattr(elf, "view", view)
    with pytest.raises(TargetError, match="free memory"):
        elf.dynamic_functions({"malloc"})
