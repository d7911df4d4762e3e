"""A stack's identity across runs, rebuilds and machines, and its responsible function."""

import hashlib
import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache

from memleak_android.host.profile.generated_code import is_generated
from memleak_android.host.profile.profile import Frame
from memleak_android.host.profile.runtime_sites import (
    ALLOCATOR,
    PYTHON_MODULE,
    RUNTIME_MODULE,
    SHIM_MODULE,
    module_name,
)

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

# Code of the C++ library that is compiled into the program's own modules.
_CXX_LIBRARY = re.compile(
    r"(void |bool |auto )?(std::|__gnu_cxx::|operator new|operator delete|__cxa_|alloc::|core::)"
)
_EVALUATES = re.compile(r"_?PyEval_(Eval|Vector).*")


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


def responsible_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame that is not in an allocator, the runtime, the C++ library or Python's API.

    Else the innermost that is in Python's, then the innermost that is not in an allocator; None if there is none. What Python code
    allocates is Python's, whoever called it.
    """
    library = python = None
    for frame in frames:
        if not frame.module and not frame.address:
            continue  # the traced function itself, as sites.py puts it first
        role = _role(frame.module, frame.function[:NAME_MAX])
        if role is _Role.OWN:
            return frame
        if role is _Role.LIBRARY:
            library = library or frame
        elif role is not _Role.ALLOCATOR:
            python = python or frame
        if role is _Role.EVALUATES:
            break
    return python or library


class _Role(Enum):
    ALLOCATOR = auto()
    LIBRARY = auto()
    PYTHON = auto()
    EVALUATES = auto()  # Python code
    OWN = auto()


@lru_cache(maxsize=65_536)
def _role(module: str, function: str) -> _Role:
    name = module_name(module)
    if SHIM_MODULE.fullmatch(name) or ALLOCATOR.fullmatch(function):
        return _Role.ALLOCATOR
    if PYTHON_MODULE.fullmatch(module):
        return _Role.EVALUATES if _EVALUATES.fullmatch(function) else _Role.PYTHON
    is_library = not module or RUNTIME_MODULE.fullmatch(name) or _CXX_LIBRARY.match(function)
    return _Role.LIBRARY if is_library else _Role.OWN
