"""Programs for another architecture or another libc, run here by QEMU's user mode with the shim and the agent of that one.

Which bionics there are: every folder below BIONICS, or of those that MEMLEAK_BIONIC names (PATH's syntax), that has libc.so,
libdl.so and linker64, or linker where it is of 32-bit arm, as they come from a device's /system or its runtime APEX.

What such a run cannot show, because this emulator has neither: process_vm_readv(2), so no exact stack keys and no
stack that is not the thread's own; a page wiped by fork; code of bionic's libc marked executable in /proc/self/maps,
so no end of a stack in it.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

ROOT = Path(__file__).resolve().parents[2]
BIONICS = ROOT.parent / "shared" / "bionic"  # Android 10's is test data of AOSP
BIONIC = BIONICS / "android10-arm64"
LINKERS = ("linker64", "linker")
FLAGS = ["-O2", "-g", "-fomit-frame-pointer", "-fno-builtin", "-fno-optimize-sibling-calls"]
FLAGS += ["-fno-sanitize=all", "-fno-unroll-loops", "-funwind-tables", "-Wall", "-Wextra", "-Werror"]


def exports(library: Path) -> set[str]:
    """The names of the symbols that an ELF file defines for others."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return {one.name for one in table.iter_symbols() if one.name and one["st_shndx"] != "SHN_UNDEF"}


@dataclass(frozen=True, slots=True)
class ForeignLibc:
    """arch: of the report. abi: folder of host/prebuilt. emulator: QEMU's program. target: zig's name of it.

    linker: of a bionic, the name of its program.
    """

    name: str
    arch: str
    abi: str
    emulator: str
    target: str
    libc: Path
    linker: str = ""

    @property
    def is_bionic(self) -> bool:
        return bool(self.linker)

    @property
    def has_exact_totals(self) -> bool:
        """Whether its libc allocates nothing in a program like ours but what stays: Android 6's and 8's does."""
        return not self.is_bionic or "reallocarray" in exports(self.libc)  # of API 29

    def compiled(self, source: Path, folder: Path) -> Path:
        """The program that `source` makes; skips the test where zig is not installed."""
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("ziglang, which compiles for other machines, is not installed (make dev)")
        program = folder / source.stem
        self._compile(*self._flags(), source, *self._link_flags(folder), "-o", program)
        return program

    def compiled_library(self, source: Path, folder: Path) -> Path:
        """`source`, which includes nothing, as library.so for a program that compiled() made in this folder."""
        words = [*self._flags(), "-fPIC", "-shared", "-nostdlib", "-fno-stack-protector"]
        words += ["-Wl,--allow-shlib-undefined,--hash-style=both"]
        words += [folder / "libc.so"] if self.is_bionic else []
        self._compile(*words, source, "-o", folder / "library.so")
        return folder / "library.so"

    def _compile(self, *words: str | Path) -> None:
        cache = str(ROOT / "build" / "zig-cache")
        subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", "-target", self.target, *words],
            env=dict(os.environ, ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache),
            check=True,
        )

    def _flags(self) -> list[str | Path]:
        # Signed return addresses, as the emulated CPU knows them.
        return [*FLAGS, *(["-mbranch-protection=standard"] if self.arch == "arm64" else [])]

    def _link_flags(self, folder: Path) -> list[str | Path]:
        if not self.is_bionic:
            return []
        linker = f"-Wl,--dynamic-linker,/system/bin/{self.linker},--allow-shlib-undefined,--hash-style=both"
        return ["-DBIONIC", "-fno-stack-protector", "-nostdlib", "-fPIE", "-pie", linker, self._names(folder)]

    def _names(self, folder: Path) -> Path:
        """A libc.so to link with that has the real one's names and nothing else: lld refuses the tables of Android 6's."""
        listing, library = folder / "names.S", folder / "libc.so"
        listing.write_text("".join(f".globl {name}\n{name}:\n" for name in sorted(exports(self.libc))))
        self._compile("-nostdlib", "-shared", "-Wl,-soname,libc.so", listing, "-o", library)
        return library

    def root(self, folder: Path) -> Path:
        """Directory in which the emulated program finds its linker and its libraries."""
        if not self.is_bionic:
            return self.libc.parents[1]
        libraries = "lib64" if self.linker == "linker64" else "lib"
        for name, target in ((self.linker, "bin"), ("libc.so", libraries), ("libdl.so", libraries)):
            (folder / "system" / target).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.libc.parent / name, folder / "system" / target / name)
        (folder / "system" / "bin" / self.linker).chmod(0o755)
        return folder

    def environment(self, folder: Path) -> dict[str, str]:
        """For our program: its agent and its shim are this libc's."""
        parts = ROOT / "host" / "prebuilt" / self.abi
        agent = folder / "memleakd"
        agent.write_text(f'#!/bin/sh\nexec {self.emulator} "{parts / "memleakd"}" "$@"\n')
        agent.chmod(0o755)
        return dict(os.environ, MEMLEAKD=str(agent), MEMLEAK_SHIM=str(parts / "libmemleak.so"))

    def need(self) -> None:
        """Skips the test, with what to do, where something is missing."""
        if shutil.which(self.emulator) is None:
            pytest.skip(f"{self.emulator} is not installed (apt-get install qemu-user-static)")
        if not self.libc.exists():
            pytest.skip(f"{self.libc} is not here: {self.name} cannot be tried")
        if not (ROOT / "host" / "prebuilt" / self.abi / "libmemleak.so").exists():
            pytest.skip(f"no device parts for {self.abi} (make -f ndk-build/Makefile ABIS={self.abi})")


_ARM64 = ("arm64", "arm64-v8a", "qemu-aarch64-static", "aarch64-linux-gnu.2.36")
_ARM32 = ("arm32", "armeabi-v7a", "qemu-arm-static", "arm-linux-gnueabihf.2.36")


def bionics(paths: str | None = None) -> tuple[ForeignLibc, ...]:
    """Those of MEMLEAK_BIONIC and those below BIONICS, by their folders' names; Android 10's where there is none, to be skipped."""
    words = os.environ.get("MEMLEAK_BIONIC", "") if paths is None else paths
    named = [Path(word) for word in words.split(":") if word]
    folders = [folder for path in (*named, BIONICS) for folder in (path, *sorted(path.glob("*")))]
    found = {
        folder.name: ForeignLibc(
            folder.name, *(_ARM64 if linker == "linker64" else _ARM32), folder / "libc.so", linker
        )
        for folder in reversed(folders)
        for linker in LINKERS
        if all((folder / name).is_file() for name in (linker, "libc.so", "libdl.so"))
    }
    return tuple(found.values()) or (ForeignLibc(BIONIC.name, *_ARM64, BIONIC / "libc.so", "linker64"),)


FOREIGN_LIBCS = (
    ForeignLibc("glibc-arm64", *_ARM64, Path("/usr/aarch64-linux-gnu/lib/libc.so.6")),
    ForeignLibc("glibc-arm32", *_ARM32, Path("/usr/arm-linux-gnueabihf/lib/libc.so.6")),
    *bionics(),
)
each_libc = [
    pytest.param(libc, id=libc.name, marks=[] if libc.is_bionic else pytest.mark.proof)
    for libc in FOREIGN_LIBCS
]
