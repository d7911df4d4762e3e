"""Builds tests/support/programs/self_capture.c in unusual ways and lets it capture itself: a snapshot folder and its truth."""

import lzma
import shutil
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from memleak_android.unwind.maps import Mapping
from memleak_android.unwind.snapshot.files import read_mappings
from memleak_android.unwind.snapshot.folder import SnapshotFrame

SOURCE = Path(__file__).parents[1] / "programs" / "self_capture.c"
APK_OFFSET = 0x5000
_FLAGS = ("-O2", "-std=gnu17", "-fno-optimize-sibling-calls", "-w")
Change = Callable[["Toolchain", Path], None]


@dataclass(frozen=True)
class Toolchain:
    """prefix: of the compiler and its binutils. emulator: what runs its programs elsewhere."""

    prefix: str = ""
    emulator: tuple[str, ...] = ()

    def run(self, tool: str, *words: object) -> None:
        subprocess.run([self.prefix + tool, *map(str, words)], check=True, capture_output=True)


HOST = Toolchain()
ARM64 = Toolchain("aarch64-linux-gnu-", ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"))
ARM32 = Toolchain("arm-linux-gnueabihf-", ("qemu-arm-static", "-L", "/usr/arm-linux-gnueabihf"))


@dataclass(frozen=True)
class Capture:
    """A folder as `unwind` reads it. truth: functions of the program, innermost first."""

    folder: Path
    truth: list[str]
    _symbols: list[tuple[int, int, str]]

    def functions(self, frames: Sequence[SnapshotFrame]) -> list[str]:
        """Names of the frames in the program's own functions, by the symbols that stripping removed.

        Libraries are left out, also those linked in statically.
        """
        own = [f for f in frames if f.mapping is not None and Path(f.mapping.path).stem == "program"]
        return [name for name in map(self._name, (f.rel_pc for f in own)) if name in self.truth]

    def _name(self, vaddr: int) -> str:
        at = bisect_right(self._symbols, (vaddr, 1 << 64, "")) - 1
        start, size, name = self._symbols[at]
        return name if 0 <= vaddr - start < size else f"nothing at {vaddr:#x}"


def capture(
    tmp_path: Path, toolchain: Toolchain, flags: Sequence[str], change: Change | None = None
) -> Capture:
    """Compiles, changes the file, runs it. Skips the test where the compiler or its emulator is absent."""
    for tool in (toolchain.prefix + "gcc", *toolchain.emulator[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program, folder = tmp_path / "program", tmp_path / "case"
    folder.mkdir()
    toolchain.run("gcc", *_FLAGS, *flags, "-o", program, SOURCE)
    symbols = _symbols(program)
    (change or strip)(toolchain, program)
    subprocess.run([*toolchain.emulator, program, folder], check=True, timeout=60)
    for mapping in read_mappings(folder):
        if mapping.path.startswith("/") and not mapping.path.endswith(".cache"):
            shutil.copyfile(mapping.path, folder / Path(mapping.path).name)
    return Capture(folder, (folder / "truth.txt").read_text().split(), symbols)


def _symbols(program: Path) -> list[tuple[int, int, str]]:
    with program.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert table is not None
        functions = [s for s in table.iter_symbols() if s["st_info"]["type"] == "STT_FUNC"]
        return sorted((s["st_value"] & ~1, s["st_size"], s.name) for s in functions)


def strip(toolchain: Toolchain, program: Path) -> None:
    """Symbols and debugging sections go."""
    toolchain.run("strip", program)


def keep(toolchain: Toolchain, program: Path) -> None:
    """Nothing goes."""


def compress(form: str) -> Change:
    """Debugging sections are compressed: zlib (SHF_COMPRESSED), zlib-gnu (.zdebug_*)."""
    return lambda toolchain, program: toolchain.run("objcopy", f"--compress-debug-sections={form}", program)


def pack_debug_frame(toolchain: Toolchain, program: Path) -> None:
    """.debug_frame goes into .gnu_debugdata, as Android packs its mini debug info."""
    inner = program.with_suffix(".debug")
    toolchain.run("objcopy", "--only-keep-debug", program, inner)
    toolchain.run("strip", "--keep-section=.debug_frame", "--strip-debug", inner)
    packed = program.with_suffix(".xz")
    packed.write_bytes(lzma.compress(inner.read_bytes()))
    toolchain.run("objcopy", "--strip-all", f"--add-section=.gnu_debugdata={packed}", program)


def drop_section_headers(toolchain: Toolchain, program: Path) -> None:
    """As packers leave files (Elf64_Ehdr: e_shoff at 40, e_shnum and e_shstrndx at 60; Elf32_Ehdr: 32, 48)."""
    image = bytearray(program.read_bytes())
    for start, end in ((40, 48), (60, 64)) if image[4] == 2 else ((32, 36), (48, 52)):
        image[start:end] = bytes(end - start)
    program.write_bytes(image)


def move_into_apk(folder: Path, *, only_in_memory: bool = False) -> None:
    """The program as a part of a larger file; that file may be missing, and what was mapped of it captured."""
    elf = (folder / "program").read_bytes()
    (folder / "program").unlink()
    lines = []
    for number, m in enumerate(read_mappings(folder)):
        if Path(m.path).name == "program":
            if only_in_memory:
                _write_memory(folder / f"image{number}.data", m, elf)
            m = Mapping(m.start, m.end, m.permissions, m.file_offset + APK_OFFSET, m.path + ".apk")
        lines.append(f"{m.start:x}-{m.end:x} {m.permissions} {m.file_offset:x} 0:0 0 {m.path}\n")
    (folder / "maps.txt").write_text("".join(lines))
    if not only_in_memory:
        (folder / "program.apk").write_bytes(bytes(APK_OFFSET) + elf + b"PK")


def _write_memory(path: Path, mapping: Mapping, file: bytes) -> None:
    shown = file[mapping.file_offset :][: mapping.end - mapping.start]
    path.write_bytes(struct.pack("<Q", mapping.start) + shown)
