"""Programs to symbolise, and what binutils and LLVM say about their addresses."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from memleak_android.host.symbols.debug_files import open_elf

INLINING_PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
namespace planted {
template <class T> struct Holder {
    std::vector<T> kept;
    __attribute__((always_inline)) void keep(T value) {
        kept.push_back(value);
    }
};
static inline __attribute__((always_inline)) void *innermost(size_t n) {
    void *p = malloc(n);
    return p;
}
static inline __attribute__((always_inline)) void *middle(size_t n) {
    void *p = innermost(n + 1);
    return p;
}
__attribute__((noinline)) void *outer(size_t n) {
    void *p = middle(n * 3);
    return p;
}
__attribute__((noinline)) void fill(Holder<std::string> &holder, int n) {
    for (int i = 0; i < n; i++)
        holder.keep(std::to_string(i));
}
}
int main(int argc, char **) {
    planted::Holder<std::string> holder;
    planted::fill(holder, argc * 100);
    return planted::outer(argc) == nullptr;
}
"""


@dataclass(frozen=True)
class FileModule:
    """A module as the symbolizer takes it, read from a file."""

    path: str
    build_id: str
    data: memoryview

    @classmethod
    def open(cls, path: Path) -> FileModule:
        elf = open_elf(path)
        return cls(str(path), elf.build_id, elf.data)


def need(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"{tool} is not installed")
    return path


def compile_cxx(source: str, output: Path, *flags: str) -> Path:
    command = [need("g++"), "-x", "c++", "-O2", "-g", "-Wl,--build-id", *flags, "-o", str(output), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return output


def text_vaddrs(path: Path, name: str = ".text") -> range:
    """The vaddrs of a section, by readelf."""
    listing = subprocess.run(
        [need("readelf"), "-SW", str(path)], capture_output=True, text=True, check=True
    ).stdout
    match = re.search(rf"\] {re.escape(name)}\s+\w+\s+([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", listing)
    assert match, listing
    start = int(match[1], 16)
    return range(start, start + int(match[2], 16))


def llvm_symbolizer(path: Path, vaddrs: list[int]) -> list[list[tuple[str, int]]]:
    """(function, line) innermost first, per vaddr."""
    command = [need("llvm-symbolizer"), "--inlines", "--demangle", "--functions=linkage", f"--obj={path}"]
    text = "\n".join(f"{v:#x}" for v in vaddrs)
    output = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    chains = []
    for part in output.strip().split("\n\n"):
        lines = part.split("\n")
        chains.append([(f, _line(p)) for f, p in zip(lines[::2], lines[1::2], strict=True)])
    return chains


def addr2line(path: Path, vaddrs: list[int]) -> list[list[tuple[str, int]]]:
    """(function, line) innermost first, per vaddr."""
    command = [need("addr2line"), "-a", "-i", "-C", "-f", "-e", str(path)]
    text = "\n".join(f"{v:#x}" for v in vaddrs)
    output = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    chains: list[list[tuple[str, int]]] = []
    lines = iter(output.splitlines())
    for line in lines:
        if re.fullmatch(r"0x[0-9a-f]{16}", line):
            chains.append([])
        else:
            chains[-1].append((line, _line(next(lines))))
    return chains


def _line(location: str) -> int:
    match = re.search(r":(\d+)(:\d+)?( \(discriminator \d+\))?$", location)
    return int(match[1]) if match else 0
