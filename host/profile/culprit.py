"""Which frame of a stack answers for its memory: the innermost that the program's authors wrote."""

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum, auto
from functools import lru_cache

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.ownership import Owner
from memleak_android.host.profile.runtime_sites import (
    ALLOCATOR,
    PYTHON_MODULE,
    RUNTIME_MODULE,
    SCRIPT_FRAMES,
    SHIM_MODULE,
    module_name,
)

NAME_MAX = 4096  # characters of a name that are looked at

# Sources of libraries that are compiled into the program's own modules.
_LIBRARY_FILE = re.compile(
    r"/usr/(local/)?include/.*|/usr/lib/.*|/rustc/.*|.*/\.cargo/(registry|git)/.*|.*/rustlib/src/.*"
    r"|.*/include/c\+\+/.*|.*/c\+\+/v1/.*|.*/sysroot/usr/.*|.*/site-packages/.*/include/.*|/usr/local/go/src/.*"
)
# Of other languages: what comes with the interpreter or was installed for it, and what is in no file but for `-c`, notebooks and
# prompts.
_LIBRARY_SCRIPT = re.compile(
    r".*/lib(64)?/(python|pypy)[\d.]*/.*|.*/(site|dist)-packages/.*|node:.*|.*/node_modules/.*|<(?!(string|stdin|console)>|ipython-input).*>|"
)
_MADE_BY_LIBRARY = re.compile(r"(.*\.)?__\w+__")  # methods in `<string>`: dataclasses, namedtuple
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
    r"|default_(m|c|re)alloc|PyDataMem_(User)?(RE)?NEW(_ZEROED)?|_?npy_alloc_cache\w*"  # NumPy
    r"|lexbor_\w+"  # lexbor's core: pools, arrays, trees
    r"|palloc0?|MemoryContextAlloc\w*|AllocSet(Alloc|Realloc)\w*|_?talloc_\w+"  # PostgreSQL, Samba
    r"|_?PyObject_(Malloc|Calloc|Realloc)|_?PyMem_(Raw)?(Malloc|Calloc|Realloc)|_PyObject_GC_\w+"  # CPython
    r"|_Py(Object|Mem)_Arena\w*|_PyObject_VirtualAlloc|(allocate|push)_chunk|_PyThreadState_(Bump|Push)\w*"  # its arenas, frames
    r"|Perl_safesys(m|c|re)alloc|lua[ML]_\w*alloc\w*|l_alloc"  # Perl, Lua
    r"|(os::(m|re)alloc|(Rea|A)llocateHeap|(memory|region)::(re)?allocate)\(.*\)|allocate_default_page\(.*\)"  # HotSpot, Z3
    r"|__rust_(re)?alloc(_zeroed)?|__rg_(re)?alloc|__rdl_(re)?alloc\w*|mi_(heap_)?(m|c|re)alloc\w*|je_(m|c|re)alloc\w*"
)
# It passes on calls of ctypes, cffi, Ruby's fiddle, JNA: the caller or the called library answers. Wheels have a copy of their own.
_FORWARDER = re.compile(r"libffi(-[0-9a-f]+)?\.so[\w.]*")
# Programs and libraries that run code of another language: what is outside of them answers first.
_INTERPRETER = re.compile(
    r"(.*/)?(node(js)?|libnode\.so[\w.]*|ruby[\d.]*|libruby[\w.-]*|perl[\d.]*|libperl\.so[\w.]*|php[\d.-]*\w*|libphp[\w.]*"
    r"|lua[\d.]*|luajit[\w.-]*|liblua[\w.-]*|java|libjvm\.so)"
)
# The object that a new arena of CPython was made for is any that came next: its callers tell nothing.
_ARENA = frozenset(("new_arena", "allocate_from_new_pool"))
_EVALUATES = re.compile(
    r"_?PyEval_Eval.*|Builtins_JSEntry\w*|Builtins_Interpreter\w*|(rb_)?vm_exec(_core)?|Perl_runops_\w+"
    r"|execute_ex|zend_execute(_scripts)?|luaV_execute|lj_BC_\w+"
)


def responsible_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame that is not in an allocator, a wrapper of one, the runtime, a library's source or an interpreter.

    Before it comes the innermost that the user calls theirs. Else the innermost of a library in Python, the innermost with a name
    that is in an interpreter (its nameless functions serve all others), then any there, then the innermost that is not in an
    allocator; None if there is none. The interpreter answers for what interpreted code allocates whose frames are not known.
    """
    own = None
    first = dict[Role, Frame]()
    for frame, role in _innermost(frames):
        if role is Role.NAMED_OWN:
            return frame
        own = own or (frame if role is Role.OWN else None)
        known = first.setdefault(role, frame)
        if role is Role.INTERPRETER and frame.function and not known.function:
            first[role] = frame
    order = (Role.SCRIPT, Role.INTERPRETER, Role.EVALUATES, Role.LIBRARY)
    return own or next((first[role] for role in order if role in first), None)


def called_function(frames: Sequence[Frame]) -> Frame | None:
    """The function of a library, interpreter or wrapper that the responsible frame called; None = it called the allocator."""
    responsible, called = responsible_frame(frames), None
    for frame, role in roles(frames):
        if frame is responsible:
            return called
        is_passed_over = role in (Role.ALLOCATOR, Role.EVALUATES) or not frame.function
        called = None if is_passed_over else frame
        if role is Role.INTERPRETER and responsible is not None and responsible.module in SCRIPT_FRAMES:
            called = None
    return None


def own_callers(frames: Sequence[Frame]) -> list[Frame]:
    """The frames further out than the responsible one that are no library's, the innermost first, up to interpreted code whose
    frames are not known."""
    responsible = responsible_frame(frames)
    is_known = _has_scripts(frames)
    shown = {Role.NAMED_OWN, Role.OWN} | (set() if is_known else {Role.INTERPRETER})
    found, is_further = list[Frame](), False
    for frame, role in roles(frames):
        if is_further and role in shown:
            found.append(frame)
        if role is Role.EVALUATES and not is_known:
            break
        is_further |= frame is responsible
    return found


def _has_scripts(frames: Sequence[Frame]) -> bool:
    """Some interpreted or generated code has names."""
    return any(frame.module in SCRIPT_FRAMES for frame in frames)


def _innermost(frames: Sequence[Frame]) -> list[tuple[Frame, "Role"]]:
    """Up to interpreted code; where its frames are known and none so far is the program's own, up to the code that called it …"""
    found = list[tuple[Frame, Role]]()
    has_own = has_scripts = False
    for frame in _meaningful(frames):
        role = _role_of(frame)
        found.append((frame, role))
        has_own |= role is Role.OWN
        if role is Role.EVALUATES and not has_own:
            has_scripts = has_scripts or _has_scripts(frames)
        if role is Role.NAMED_OWN or (role is Role.EVALUATES and (has_own or not has_scripts)):
            return found
    return _as_program(found)


class Role(IntEnum):
    """What a frame is to the memory that its callees allocated."""

    ALLOCATOR = auto()
    LIBRARY = auto()
    INTERPRETER = auto()
    EVALUATES = auto()  # interpreted code
    SCRIPT = auto()  # a library in Python
    OWN = auto()
    NAMED_OWN = auto()  # by --mine


def roles(frames: Sequence[Frame]) -> list[tuple[Frame, Role]]:
    """Without the traced function itself, as sites.py puts it first."""
    return _as_program([(frame, _role_of(frame)) for frame in _meaningful(frames)])


def _meaningful(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Those with an address or a module, none outside of an arena."""
    for frame in frames:
        if frame.module or frame.address:
            yield frame
            if frame.function in _ARENA and PYTHON_MODULE.fullmatch(frame.module):
                return


def _as_program(found: list[tuple[Frame, Role]]) -> list[tuple[Frame, Role]]:
    """A program that is only called like an interpreter is its authors'."""
    if any(role is Role.EVALUATES for _, role in found):
        return found
    return [
        (
            frame,
            Role.OWN if role is Role.INTERPRETER and not PYTHON_MODULE.fullmatch(frame.module) else role,
        )
        for frame, role in found
    ]


def _role_of(frame: Frame) -> Role:
    return _role(frame.module, frame.function[:NAME_MAX], frame.file or "", frame.owner)


@lru_cache(maxsize=65_536)
def _role(module: str, function: str, file: str, owner: Owner | None) -> Role:
    name = module_name(module)
    if SHIM_MODULE.fullmatch(name) or ALLOCATOR.fullmatch(function):
        return Role.ALLOCATOR
    if owner is not None:
        return Role.NAMED_OWN if owner is Owner.MINE else Role.LIBRARY
    if module in SCRIPT_FRAMES:
        is_made = file == "<string>" and _MADE_BY_LIBRARY.fullmatch(function)
        return Role.SCRIPT if is_made or _LIBRARY_SCRIPT.fullmatch(file) else Role.OWN
    is_python = PYTHON_MODULE.fullmatch(module)
    if (is_python or _INTERPRETER.fullmatch(module)) and _EVALUATES.fullmatch(function):
        return Role.EVALUATES
    if (
        not module
        or RUNTIME_MODULE.fullmatch(name)
        or _FORWARDER.fullmatch(name)
        or _WRAPPER.fullmatch(function)
    ):
        return Role.LIBRARY
    if is_python:
        return Role.INTERPRETER
    if _LIBRARY_FILE.fullmatch(file) if file else _LIBRARY_NAME.match(function):
        return Role.LIBRARY
    return Role.INTERPRETER if _INTERPRETER.fullmatch(module) else Role.OWN
