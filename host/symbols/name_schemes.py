"""One mangled name → text: the demangler that knows its scheme.

- LLVM's demangler for C++ (Itanium C++ ABI §5.1) and Rust's v0 (RFC 2603).
- libstdc++'s `__cxa_demangle` for what LLVM's refuses: GCC mangles some C++20 names otherwise (`ntsr…` in
  `_ZSt11make_shared…`).
- Rust's legacy scheme is C++'s with escapes and a hash (rustc, compiler/rustc_symbol_mangling/src/legacy.rs).

A name can take any time and memory (demangle.py says which).
"""

import ctypes
import re
from functools import cache
from typing import Any

import pycxxfilt

_RUST_LEGACY = re.compile(r"(_?_ZN.*17h[0-9a-f]{16}E)((\.[\w.$@]+)?)", re.ASCII)
_LENGTH = re.compile(r"\d{1,5}", re.ASCII)
_CLONE = re.compile(r"(_?_Z\w+)(\.[\w.$]+)", re.ASCII)
_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
_ESCAPE = re.compile(r"\$(\w{1,2}|u[0-9a-f]{1,6})\$", re.ASCII)


def text_of_name(name: str) -> str:
    """The demangled name; "" for one of no scheme."""
    if (legacy := _RUST_LEGACY.fullmatch(name)) and (path := _rust_legacy_path(legacy[1])):
        return path + _clone(legacy[2])
    return _text_by_llvm(name) or _text_by_gnu(name)


def _text_by_llvm(name: str) -> str:
    """Of C++ and Rust's v0; "" where LLVM refuses it."""
    try:
        return pycxxfilt.demangle(name) or ""
    except ValueError:
        return ""


def _rust_legacy_path(name: str) -> str:
    """Without its hash; "" where the lengths do not fit."""
    parts, at = list[str](), name.index("N") + 1
    while length := _LENGTH.match(name, at):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    return "::".join(map(_rust_text, parts[:-1])) if at == len(name) - 1 and len(parts) > 1 else ""


def _rust_text(part: str) -> str:
    """An identifier without rustc's escapes, and without the `_` that rustc puts before a leading one."""
    if part.startswith("_$"):
        part = part[1:]
    return _ESCAPE.sub(_escaped, part.replace("..", "::"))


def _escaped(found: re.Match[str]) -> str:
    word = found[1]
    if word in _ESCAPES:
        return _ESCAPES[word]
    try:
        text = chr(int(word[1:], 16)) if word[0] == "u" else ""
    except ValueError:
        text = ""
    return text if text.isprintable() and text else found[0]


def _clone(suffix: str) -> str:
    """As LLVM's demangler shows it; its linker's own `.llvm.…` says nothing to people."""
    return "" if not suffix or suffix.startswith(".llvm.") else f" ({suffix})"


def _text_by_gnu(name: str) -> str:
    clone = _CLONE.fullmatch(name)
    symbol = clone[1] if clone else name
    libstdcxx = _libstdcxx()
    if libstdcxx is None or not symbol.startswith("_Z") or "\0" in symbol:
        return ""
    status = ctypes.c_int()
    text = libstdcxx.__cxa_demangle(symbol.encode(errors="replace"), None, None, ctypes.byref(status))
    if not text:
        return ""
    try:
        return ctypes.string_at(text).decode(errors="replace") + _clone(clone[2] if clone else "")
    finally:
        libstdcxx.free(text)


@cache
def _libstdcxx() -> Any:
    """None where there is none. Its symbols include those of libc, which it needs."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        library.free.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return library
