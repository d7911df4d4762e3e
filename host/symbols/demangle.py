"""Demangles names of C++ (Itanium) and Rust; other names come back unchanged.

A mangled name may refer to its earlier parts, to parts around them and to lists (Itanium C++ ABI §5.1.10; Rust RFC 2603,
"Back references"): 65 characters can mean 17 MB, and 240 more than any machine has. LLVM's demangler bounds neither time
nor memory. A process with limits (demangling_limits.py) demangles names with references; few others are demangled here.
"""

import re
from collections.abc import Sequence

from memleak_android.host.symbols.demangling_process import DemanglingProcess
from memleak_android.host.symbols.name_schemes import text_of_name

MAX_MANGLED_LENGTH = 16_384
# Of 1,118,765 names in 3,537 ELF files the one that grows most becomes 32 times as long.
MAX_GROWTH = 128
# So many names are worth the start of the process (15 ms), which demangles any name.
_MANY_NAMES = 1000
# LLVM's demangler recurses without a limit: the nesting of a longer name might exceed a thread's stack.
_MAX_LENGTH_HERE = 1024
_SCHEMES = ("_Z", "_R", "__Z")
# References repeat another part of the name; Rust's G stands for many lifetimes. Only a T repeats a list.
_ITANIUM_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_RUST_REFERENCE = re.compile(r"[BG][0-9A-Za-z]*_")

_process = DemanglingProcess()


def demangle(name: str) -> str:
    """The demangled ELF symbol name; the name itself if it is not mangled, or refused."""
    return demangle_all([name])[0]


def demangle_all(names: Sequence[str]) -> list[str]:
    """demangle() of each name, cheaper.

    Refused are names of more than MAX_MANGLED_LENGTH characters, names that would become more than MAX_GROWTH times as
    long, and names that exceed the limits of demangling_limits.py.
    """
    shown = list(names)
    mangled = [
        i for i, name in enumerate(names) if name.startswith(_SCHEMES) and len(name) <= MAX_MANGLED_LENGTH
    ]
    if len(mangled) < _MANY_NAMES:
        for i in mangled:
            if _is_harmless(names[i]):
                shown[i] = text_of_name(names[i]) or names[i]
        mangled = [i for i in mangled if not _is_harmless(names[i])]
    for i, text in zip(mangled, _process.demangle([names[i] for i in mangled], MAX_GROWTH), strict=True):
        shown[i] = text or names[i]
    return shown


def _is_harmless(name: str) -> bool:
    """Whether time and memory are linear in the name's length."""
    reference = _RUST_REFERENCE if name.startswith("_R") else _ITANIUM_REFERENCE
    return len(name) <= _MAX_LENGTH_HERE and not reference.search(name)
