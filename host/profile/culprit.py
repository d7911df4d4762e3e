"""Which frame of a stack answers for its memory: the innermost that the program's authors wrote."""

import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache

from memleak_android.host.profile.ownership import Owner
from memleak_android.host.profile.profile import Frame
from memleak_android.host.profile.runtime_sites import (
    ALLOCATOR,
    PYTHON_MODULE,
    RUNTIME_MODULE,
    SHIM_MODULE,
    module_name,
)

NAME_MAX = 4096  # characters of a name that are looked at

# Sources of libraries that are compiled into the program's own modules.
_LIBRARY_FILE = re.compile(
    r"/usr/(local/)?include/.*|/usr/lib/.*|/rustc/.*|.*/\.cargo/(registry|git)/.*|.*/rustlib/src/.*"
    r"|.*/include/c\+\+/.*|.*/c\+\+/v1/.*|.*/sysroot/usr/.*|.*/site-packages/.*/include/.*|/usr/local/go/src/.*"
)
# By its names where no line is known.
_LIBRARY_NAME = re.compile(
    r"(void |bool |auto )?(std::|__gnu_cxx::|operator new|operator delete|__cxa_|<?(alloc|core|std)::|_start$|__libc_start)"
)
# Functions that allocate for their caller and add nothing of their own, by the libraries that have them.
_WRAPPER = re.compile(
    r"x(m|c|re)alloc(array)?|xnmalloc|xzalloc|x(str|strn|mem)dup"  # gnulib, git, binutils, OpenSSH
    r"|g_(try_)?(malloc|malloc0|realloc|new|new0)(_n)?|g_(str|strn|mem)dup2?|g_slice_(alloc0?|copy)"  # GLib
    r"|sqlite3_?(Db)?(Malloc|malloc|Realloc|realloc)\w*|sqlite3MemMalloc|sqlite3DbStr(N)?Dup"  # SQLite
    r"|CRYPTO_(m|z|c|re|clear_re|aligned_)alloc(_array)?|CRYPTO_(str|strn|mem)dup|BUF_MEM_grow(_clean)?"  # OpenSSL
    r"|av_(m|c|re)alloc(z|_array|p|p_array)*|av_(str|strn|mem)dup|av_fast_\w*alloc\w*"  # FFmpeg
    r"|z(try)?(m|c|re)alloc(_usable|_internal)?|ztry(m|c|re)alloc\w*|zstrdup|sds(new|newlen|dup|_malloc)"  # Redis
    r"|(rb_(gc_)?|ruby_)x(m|c|re)alloc2?(_\w+)?|objspace_x(m|c|re)alloc\w*|onig_\w*alloc\w*"  # Ruby, Oniguruma
    r"|_?e(m|c|re|safe_m)alloc(_\w+)?|_?estrn?dup|zend_mm_alloc\w*|__zend_(m|c|re)alloc"  # PHP
    r"|jv_mem_(alloc|calloc|realloc|strdup)\w*|jv_alloc_\w+"  # jq
    r"|ngx_(alloc|calloc|palloc|pnalloc|pcalloc|palloc_\w+)|apr_p?(palloc|calloc)(_debug)?|pool_alloc"  # nginx, APR
    r"|palloc0?|MemoryContextAlloc\w*|AllocSet(Alloc|Realloc)\w*|_?talloc_\w+"  # PostgreSQL, Samba
    r"|_?PyObject_(Malloc|Calloc|Realloc)|_?PyMem_(Raw)?(Malloc|Calloc|Realloc)|_PyObject_GC_\w+"  # CPython
    r"|Perl_safesys(m|c|re)alloc|lua[ML]_\w*alloc\w*|l_alloc"  # Perl, Lua
    r"|(os::(m|re)alloc|(Rea|A)llocateHeap)\(.*\)"  # HotSpot
    r"|__rust_(re)?alloc(_zeroed)?|__rg_(re)?alloc|__rdl_(re)?alloc\w*|mi_(heap_)?(m|c|re)alloc\w*|je_(m|c|re)alloc\w*"
)
# Programs and libraries that run code of another language: what is outside of them answers first.
_INTERPRETER = re.compile(
    r"(.*/)?(node(js)?|libnode\.so[\w.]*|ruby[\d.]*|libruby[\w.-]*|perl[\d.]*|libperl\.so[\w.]*|php[\d.-]*\w*|libphp[\w.]*"
    r"|lua[\d.]*|luajit[\w.-]*|liblua[\w.-]*|java|libjvm\.so)"
)
_EVALUATES = re.compile(
    r"_?PyEval_(Eval|Vector).*|Builtins_JSEntry\w*|Builtins_Interpreter\w*|(rb_)?vm_exec(_core)?|Perl_runops_\w+"
    r"|execute_ex|zend_execute(_scripts)?|luaV_execute|lj_BC_\w+"
)


def responsible_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame that is not in an allocator, a wrapper of one, the runtime, a library's source or an interpreter.

    Before it comes the innermost that the user calls theirs. Else the innermost with a name that is in an interpreter (its
    nameless functions serve all others), then any there, then the innermost that is not in an allocator; None if there is none.
    The interpreter answers for what interpreted code allocates.
    """
    own = library = interpreter = named = None
    for frame, role in _roles(frames):
        if role is _Role.NAMED_OWN:
            return frame
        if role is _Role.OWN:
            own = own or frame
        elif role is _Role.LIBRARY:
            library = library or frame
        elif role is not _Role.ALLOCATOR:
            interpreter = interpreter or frame
            if frame.function and role is _Role.INTERPRETER:
                named = named or frame
        if role is _Role.EVALUATES:
            break
    return own or named or interpreter or library


def called_function(frames: Sequence[Frame]) -> Frame | None:
    """The function of a library, interpreter or wrapper that the responsible frame called; None = it called the allocator."""
    responsible, called = responsible_frame(frames), None
    for frame, role in _roles(frames):
        if frame is responsible:
            return called
        called = frame if role is not _Role.ALLOCATOR and frame.function else None
    return None


def own_callers(frames: Sequence[Frame]) -> list[Frame]:
    """The frames further out than the responsible one that are no library's, the innermost first, up to interpreted code."""
    responsible = responsible_frame(frames)
    found, is_further = list[Frame](), False
    for frame, role in _roles(frames):
        if is_further and role in (_Role.NAMED_OWN, _Role.OWN, _Role.INTERPRETER):
            found.append(frame)
        if role is _Role.EVALUATES:
            break
        is_further |= frame is responsible
    return found


class _Role(Enum):
    ALLOCATOR = auto()
    LIBRARY = auto()
    INTERPRETER = auto()
    EVALUATES = auto()  # interpreted code
    OWN = auto()
    NAMED_OWN = auto()  # by --mine


def _roles(frames: Sequence[Frame]) -> list[tuple[Frame, _Role]]:
    """Without the traced function itself, as sites.py puts it first."""
    found = [
        (frame, _role(frame.module, frame.function[:NAME_MAX], frame.file or "", frame.owner))
        for frame in frames
        if frame.module or frame.address
    ]
    if any(role is _Role.EVALUATES for _, role in found):
        return found
    # A program that is only called like an interpreter is its authors'.
    return [
        (
            frame,
            _Role.OWN if role is _Role.INTERPRETER and not PYTHON_MODULE.fullmatch(frame.module) else role,
        )
        for frame, role in found
    ]


@lru_cache(maxsize=65_536)
def _role(module: str, function: str, file: str, owner: Owner | None) -> _Role:
    name = module_name(module)
    if SHIM_MODULE.fullmatch(name) or ALLOCATOR.fullmatch(function):
        return _Role.ALLOCATOR
    if owner is not None:
        return _Role.NAMED_OWN if owner is Owner.MINE else _Role.LIBRARY
    is_python = PYTHON_MODULE.fullmatch(module)
    if (is_python or _INTERPRETER.fullmatch(module)) and _EVALUATES.fullmatch(function):
        return _Role.EVALUATES
    if not module or RUNTIME_MODULE.fullmatch(name) or _WRAPPER.fullmatch(function):
        return _Role.LIBRARY
    if is_python:
        return _Role.INTERPRETER
    if _LIBRARY_FILE.fullmatch(file) if file else _LIBRARY_NAME.match(function):
        return _Role.LIBRARY
    return _Role.INTERPRETER if _INTERPRETER.fullmatch(module) else _Role.OWN
