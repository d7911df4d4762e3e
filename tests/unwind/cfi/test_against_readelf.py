"""Every row of real libraries against `readelf --debug-dump=frames-interp`."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from memleak_android.unwind import Module
from memleak_android.unwind.cfi.rules import RuleKind, UnwindRow
from memleak_android.unwind.trace import Method
from tests.support.corpus import CORPUS
from tests.support.debian_packages import packages
from tests.support.npm_packages import native_modules

NAMES = {
    "x86_64": [
        *["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"],
        *(f"r{n}" for n in range(8, 16)),
        "ra",
    ],
    "arm64": [
        *(f"x{n}" for n in range(31)),
        "sp",
        *(f"r{n}" for n in range(32, 64)),
        *(f"v{n}" for n in range(32)),
    ],
    "arm32": [f"r{n}" for n in range(320)],
}
FDE = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)")
LIBRARIES = (
    *("libc6", "libstdc++6", "libssl3", "libpython3.11-minimal"),
    *("libglib2.0-0", "git", "libicu72", "libboost-regex1.74.0"),
)


def machines_own() -> list[Path]:
    folder = Path("/usr/lib/x86_64-linux-gnu")
    names = ["libc.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6", "libm.so.6", "libcrypto.so.3"]
    paths = [
        *(folder / name for name in names),
        *map(Path, ("/usr/bin/bash", "/usr/bin/git", "/usr/bin/python3")),
    ]
    found = [path for path in paths if path.exists()]
    if not found:
        pytest.skip("none of the usual x86_64 files is on this machine")
    return found


def debian(architecture: str) -> list[Path]:
    """Every ELF file of 100 KB or more of these packages."""
    folder = packages(architecture, *LIBRARIES)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [p for p in paths if p.stat().st_size > 100_000 and p.read_bytes()[:4] == b"\x7fELF"]


def debug_files() -> list[Path]:
    """arm32: distributed files have the exception index only (test_exidx.py), their CFI is in .debug_frame apart."""
    folder = packages("armhf", "libc6-dbg", "libbinutils-dbg", "libctf0-dbg")
    found = [path for path in folder.rglob("*.debug") if path.is_file() and not path.is_symlink()]
    return sorted(found, key=lambda path: (-path.stat().st_size, path.name))[:44]


def android_modules() -> list[Path]:
    """Skia and a Rust library, by the NDK's clang."""
    names = ("@napi-rs/canvas-android-arm64@1.0.11", "@css-inline/css-inline-android-arm64@0.20.1")
    return native_modules(*names)


def corpus(*names: str) -> list[Path]:
    if not CORPUS.is_dir():
        pytest.skip(f"the corpus is not beside the repository ({CORPUS})")
    return [CORPUS / name for name in names]


def readelf_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(vaddr, {column: text}) of every FDE's rows."""
    text = subprocess.run(
        ["readelf", "--debug-dump=frames-interp", "-W", str(path)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    end, columns, in_fde = 0, [], False
    for line in text.splitlines():
        match = FDE.match(line)
        fields = line.split()
        if match:
            in_fde, end = int(match[1], 16) != 0, int(match[2], 16)  # 0: discarded by the linker
        elif not fields or "CIE" in fields:
            in_fde = False
        elif fields[0] == "LOC":
            columns = fields[1:]
        elif in_fde and len(fields) == len(columns) + 1 and int(fields[0], 16) < end:
            yield int(fields[0], 16), dict(zip(columns, fields[1:], strict=True))


def readelf_functions(path: Path) -> list[tuple[int, int]]:
    text = subprocess.run(
        ["readelf", "--debug-dump=frames", "-W", str(path)], capture_output=True, text=True, check=False
    ).stdout
    found = (FDE.match(line) for line in text.splitlines())
    return [(int(match[1], 16), int(match[2], 16)) for match in found if match and int(match[1], 16)]


def test_functions_begin_and_end_where_their_entries_say() -> None:
    for path in machines_own():
        table = Module.from_path(path).table
        functions = readelf_functions(path)[::97]
        assert functions and table.function_at(0) is None
        for start, end in functions:
            assert table.function_at(start) == table.function_at(end - 1) == (start, end), path


def as_readelf(row: UnwindRow, names: list[str]) -> dict[str, str]:
    """Our row in readelf's words; what is undefined or unspecified is left out."""
    shown = {"CFA": "exp" if row.cfa_expression else f"{names[row.cfa_register]}{row.cfa_offset:+d}"}
    for rule in row.rules:
        text = {
            RuleKind.UNDEFINED: "u",
            RuleKind.SAME_VALUE: "s",
            RuleKind.OFFSET: f"c{rule.offset:+d}",
            RuleKind.VAL_OFFSET: f"v{rule.offset:+d}",
            RuleKind.REGISTER: f"{names[rule.offset] if rule.kind is RuleKind.REGISTER else ''}",
            RuleKind.EXPRESSION: "exp",
            RuleKind.VAL_EXPRESSION: "vexp",
        }[rule.kind]
        shown["ra" if rule.register == row.return_register else names[rule.register]] = text
    return {name: text for name, text in shown.items() if text != "u"}


def differences(module: Module, listed: Path) -> tuple[int, list[object]]:
    """(rows that readelf lists of a file, those of ours that differ)."""
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed (apt-get install binutils)")
    wanted = list(readelf_rows(listed))
    table, names = module.table, NAMES[module.arch.name]
    ids = table.row_ids(np.array([vaddr for vaddr, _ in wanted], np.uint64))
    different: list[object] = []
    for (vaddr, columns), row_id in zip(wanted, ids.tolist(), strict=True):
        want = {name: text for name, text in columns.items() if text != "u"}
        got = as_readelf(table.rows[row_id], names) if row_id >= 0 else {"row": "none"}
        if got != want:
            different.append((hex(vaddr), want, got))
    return len(wanted), different


OF_BLUETOOTH_AND_ART = ("bluetooth_arm64__pc_2/libbluetooth.so", "photos_reset_arm64/libart.so")
OF_ARM = ("offset_arm/libc.so", "jit_map_arm/libart.so", "jit_map_arm/jit_map0.so")


@pytest.mark.parametrize(
    ("files", "files_min", "rows_min"),
    [
        pytest.param(machines_own, 1, 50_000, id="x86_64"),
        pytest.param(lambda: corpus(*OF_BLUETOOTH_AND_ART), 2, 40_000, id="android_arm64"),
        pytest.param(lambda: corpus(*OF_ARM), 3, 500, id="android_arm32"),
        pytest.param(lambda: debian("amd64"), 30, 100_000, marks=pytest.mark.proof, id="debian_amd64"),
        pytest.param(lambda: debian("arm64"), 30, 100_000, marks=pytest.mark.proof, id="debian_arm64"),
        pytest.param(debug_files, 30, 20_000, marks=pytest.mark.proof, id="debian_armhf"),
        pytest.param(android_modules, 2, 20_000, marks=pytest.mark.proof, id="ndk_arm64"),
    ],
)
def test_rows_equal_readelfs(files: Callable[[], list[Path]], files_min: int, rows_min: int) -> None:
    paths, total = files(), 0
    assert len(paths) >= files_min
    for path in paths:
        count, different = differences(Module.from_path(path), path)
        total += count
        assert not different[:5], f"{path.name}: {len(different)} of {count} rows differ"
    assert total > rows_min


@pytest.mark.proof
def test_rows_of_mini_debuginfo_equal_readelfs(tmp_path: Path) -> None:
    """.debug_frame inside .gnu_debugdata, unpacked by xz for readelf's sake."""
    if shutil.which("xz") is None:
        pytest.skip("needs xz (apt-get install xz-utils)")
    for path in corpus("gnu_debugdata_arm/libandroid_runtime.so", "photos_reset_arm64/boot.oat"):
        module = Module.from_path(path)
        inner = module.section(".gnu_debugdata")
        assert inner is not None
        (tmp_path / "inner.xz").write_bytes(module.section_bytes(inner))
        subprocess.run(["xz", "-dkf", tmp_path / "inner.xz"], check=True)
        count, different = differences(module, tmp_path / "inner")
        assert count > 5000 and not different[:5], f"{path.name}: {len(different)} of {count} rows differ"
        assert {row.method for row in module.table.rows} == {Method.DEBUGDATA}
