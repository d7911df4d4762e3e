"""Programs for another architecture or another libc, run here by QEMU's user mode with the shim and the agent of that one.

What such a run cannot show, because this emulator has neither: process_vm_readv(2), so no exact stack keys and no
stack that is not the thread's own; a page wiped by fork; code of bionic's libc marked executable in /proc/self/maps,
so no end of a stack in it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIONIC = (
    ROOT.parent / "shared" / "bionic" / "android10-arm64"
)  # Android 10's linker and libc: test data of AOSP
FLAGS = [
    "-O2",
    "-g",
    "-fomit-frame-pointer",
    "-fno-builtin",
    "-fno-optimize-sibling-calls",
    "-fno-sanitize=all",
]
FLAGS += ["-fno-unroll-loops", "-funwind-tables", "-Wall", "-Wextra", "-Werror"]


@dataclass(frozen=True, slots=True)
class ForeignLibc:
    """arch: of the report. abi: folder of host/prebuilt. emulator: QEMU's program. target: zig's name of it."""

    name: str
    arch: str
    abi: str
    emulator: str
    target: str
    libc: Path

    @property
    def is_bionic(self) -> bool:
        return self.libc.parent == BIONIC

    def compiled(self, source: Path, folder: Path) -> Path:
        """The program that `source` makes; skips the test where zig is not installed."""
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("ziglang, which compiles for other machines, is not installed (make dev)")
        cache = str(ROOT / "build" / "zig-cache")
        program = folder / source.stem
        subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", "-target", self.target, *self._flags(), source, *self._link_flags(), "-o", program],
            env=dict(os.environ, ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache),
            check=True,
        )  # fmt: skip
        return program

    def _flags(self) -> list[str | Path]:
        # Signed return addresses, as the emulated CPU knows them.
        return [*FLAGS, *(["-mbranch-protection=standard"] if self.arch == "arm64" else [])]

    def _link_flags(self) -> list[str | Path]:
        if not self.is_bionic:
            return []
        linker = "-Wl,--dynamic-linker,/system/bin/linker64,--allow-shlib-undefined,--hash-style=both"
        return ["-DBIONIC", "-fno-stack-protector", "-nostdlib", "-fPIE", "-pie", linker, self.libc]

    def root(self, folder: Path) -> Path:
        """Where the emulated program finds its linker and its libraries."""
        if not self.is_bionic:
            return self.libc.parents[1]
        for name, place in (("linker64", "bin"), ("libc.so", "lib64"), ("libdl.so", "lib64")):
            (folder / "system" / place).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(BIONIC / name, folder / "system" / place / name)
        (folder / "system" / "bin" / "linker64").chmod(0o755)
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
FOREIGN_LIBCS = (
    ForeignLibc("glibc-arm64", *_ARM64, Path("/usr/aarch64-linux-gnu/lib/libc.so.6")),
    ForeignLibc("glibc-arm32", *_ARM32, Path("/usr/arm-linux-gnueabihf/lib/libc.so.6")),
    ForeignLibc("bionic10-arm64", *_ARM64, BIONIC / "libc.so"),
)
