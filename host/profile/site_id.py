"""A stack's identity across runs, rebuilds and machines."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.runtime_sites import is_generated, module_name

NAME_MAX = 4096  # characters of a name that count; report.json keeps as many

# Suffixes of functions that compilers split, copied, specialised or moved between units. GCC:
# gcc/cgraphclones.cc, gcc/lto/lto-partition.cc; LLVM: lib/Transforms/Utils/FunctionImportUtils.cpp (.llvm.),
# UniqueInternalLinkageNames.cpp (.__uniq.), CodeGen/MachineFunctionSplitter.cpp (.cold).
_WORD = r"(part|constprop|isra|cold|llvm|lto_priv|localalias|simdclone|str|warm|hot|unlikely|__uniq|clone|local|sra)"
_CLONE = rf"(\.{_WORD}(\.[0-9a-fA-F]+)*|\.\d+)"
# As demanglers print the same: `f(int) (.part.0)` (LLVM), `f(int) [clone .part.0]` (GNU).
_CLONES = re.compile(rf"({_CLONE}| \({_CLONE}+\)| \[clone {_CLONE}+\])+$")
_SYMBOL_VERSION = re.compile(r"@@?[A-Za-z_][\w.]*$")
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")  # of the legacy mangling: changes with the compiler's version
_LIBRARY_VERSION = re.compile(r"(-\d[\w.]*)?\.so(\.\d[\w.]*)?$")  # libx-1.2.so, libx.so.1.2.3


@lru_cache(maxsize=65_536)
def stable_function(name: str) -> str:
    """A function's name without the parts that change from build to build."""
    name = name[:NAME_MAX].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    shorter = _RUST_HASH.sub("", _CLONES.sub("", _SYMBOL_VERSION.sub("", name)))
    return shorter or name


@lru_cache(maxsize=4096)
def stable_module(path: str) -> str:
    """A module's base name without its version."""
    name = module_name(path[:NAME_MAX]).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _LIBRARY_VERSION.sub(".so", name)


def site_id(frames: Sequence[Frame]) -> str:
    """16 hex digits from modules and functions, innermost first. Nameless code counts by build-id and vaddr, generated
    code by the name of its memory.

    The id stays the same across runs, when lines move within a function, and when a rebuild splits or renumbers clones of
    functions. Two stacks through the same functions share it.
    """
    return id_of_parts([identity_part(frame) for frame in frames])


def id_of_parts(parts: Sequence[bytes]) -> str:
    """site_id() of frames whose parts are known."""
    return hashlib.blake2b(b"\n".join(parts), digest_size=8).hexdigest()


def identity_part(frame: Frame) -> bytes:
    """One frame's part of a site's identity."""
    if frame.function:
        part = f"{stable_module(frame.module)}\0{stable_function(frame.function)}"
    elif is_generated(frame.module):  # elsewhere in each run
        part = f"{stable_module(frame.module)}\0"
    else:
        part = f"{stable_module(frame.module)}\0{frame.build_id}+{frame.vaddr:#x}"
    return part.encode("utf-8", "replace")


def _place_identity(frame: Frame) -> bytes:
    """Nameless code by the start of its function: a site's id has the address of the call."""
    is_nameless = not frame.function and frame.offset
    return identity_part(replace(frame, vaddr=frame.start) if is_nameless else frame)


class PlaceNumbers:
    """Numbers places in the order in which their stacks come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes, str, int], int] = {}
        self.firsts: list[tuple[Frame | None, str]] = []  # of each place: its frame, its kind

    def number(self, frames: Sequence[Frame], kind: str) -> int:
        frame = responsible_frame(frames)
        key = (
            (kind, _place_identity(frame), frame.file or "", frame.line or 0) if frame else (kind, b"", "", 0)
        )
        found = self._numbers.setdefault(key, len(self._numbers))
        if found == len(self.firsts):
            self.firsts.append((frame, kind))
        return found
