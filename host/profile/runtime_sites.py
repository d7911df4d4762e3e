"""Recognizes modules: generated code, and stacks that hold memory of the C/C++ runtime itself."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal

from memleak_android.host.profile.frame import Frame

# Base names of modules. musl's ld-musl-*.so.1 is its libc, not a loader apart.
LOADER = r"ld-linux[\w-]*\.so\.\d+|ld-[\d.]+\.so|ld64\.so\.\d+|linker(64)?"
LIBC = (
    r"lib(c|pthread|dl|rt|resolv|nss_\w+)(-[\d.]+)?\.so(\.\d+)?|lib?c\.musl-\w+\.so\.\d+|ld-musl-\w+\.so\.\d+"
)
LIBSTDCXX = r"libstdc\+\+\.so\.[\d.]+|libc\+\+(abi|_shared)?\.so(\.[\d.]+)?"
LIBGCC = r"libgcc_s([\w.-]*)\.so\.\d+"
ANY = r".*"
EH_ALLOC = r"_GLOBAL__sub_I_eh_alloc\.cc"


@dataclass(frozen=True, slots=True)
class Rule:
    """Memory that lives until exit (or the thread's end) by the runtime's design.

    module, function: patterns of whole names, for one frame of the runtime's part of the stack.
    caller_module: of the next outer frame.
    max_objects: a stack with more blocks does not match.
    """

    what: str
    module: str
    function: str
    source: str
    caller_module: str = ANY
    max_objects: int | None = None


# The runtime allocates a FILE's buffer at the first read or write. A FILE that was never closed is still reported by the
# block of the FILE itself, which fopen returned to its caller; many of them exceed max_objects.
STDIO_SOURCES = "libio/filedoalloc.c, libio/wfiledoalloc.c; bionic libc/stdio/stdio.cpp"
STDIO_BUFFER = r"_IO_w?file_doallocate|__smakebuf"

# Sources are files of glibc 2.36, GCC 12, bionic (Android 10).
# Not here, because the caller owns what they return: strdup, asprintf, getline, fopen, opendir, newlocale,
# iconv_open, getaddrinfo, hcreate, open_memstream.
RULES: tuple[Rule, ...] = (
    Rule("stdio buffer", LIBC, STDIO_BUFFER, STDIO_SOURCES, max_objects=2),
    Rule("loader: link maps, search paths, TLS vectors", LOADER, ANY, "elf/dl-*.c"),
    Rule("thread vector", LIBC, r"_dl_allocate_tls(_storage)?|allocate_(dtv|stack)", "nptl/allocatestack.c"),
    Rule("loader state", LIBC, r"_dl_\w+|__libc_dl\w+|_dlerror_run", "dlfcn/dlerror.c, elf/dl-libc.c"),
    Rule("thread-specific data", LIBC, r"(__)?pthread_setspecific", "nptl/pthread_setspecific.c"),
    Rule("emergency exception pool", LIBSTDCXX, EH_ALLOC, "libsupc++/eh_alloc.cc"),
    Rule(
        "emergency exception pool", LIBSTDCXX, r".*\(anonymous namespace\)::pool::.*", "libsupc++/eh_alloc.cc"
    ),
    # libstdc++ is shipped without .symtab: its constructors have no name, but ld.so calls them directly.
    Rule("C++ runtime's constructors", LIBSTDCXX, ANY, "libsupc++/eh_alloc.cc", caller_module=LOADER),
    Rule("registered unwind tables", LIBGCC, ANY, "libgcc/unwind-dw2-fde.c"),
    Rule("locale", LIBC, r"setlocale|_nl_\w+|new_composite_name|read_alias_file", "locale/setlocale.c"),
    Rule(
        "message catalogues",
        LIBC,
        r"(__)?(d?c?n?|dci)gettext|(bind)?textdomain|bind_textdomain_codeset",
        "intl/dcigettext.c",
    ),
    Rule(
        "character set conversion",
        LIBC,
        # Not __gconv_open and __gconv_lookup_cache: their blocks belong to the caller's iconv_t.
        r"__gconv_(load_cache|load_conf|read_conf|find_shlib|get_path|compare_alias)|__wcsmbs_load_conv",
        "iconv/gconv_*.c, wcsmbs/wcsmbsload.c",
    ),
    Rule(
        "exit and fork handlers",
        LIBC,
        r"__new_exitfn|(__)?cxa_atexit|__cxa_thread_atexit_impl|(__)?register_atfork|__internal_atexit",
        "stdlib/cxa_atexit.c, posix/register-atfork.c",
    ),
    # Android's up to 9: it counts the processors by stdio when it begins, at the first call.
    Rule("allocator's own start", LIBC, r"je_(m|c|re)alloc|malloc_init_hard", "jemalloc src/jemalloc.c"),
    Rule("environment", LIBC, r"__add_to_environ|setenv|putenv", "stdlib/setenv.c"),
    Rule(
        "time zone",
        LIBC,
        r"__tz\w+|tzset(_internal)?|((local|gm)time|ctime)(_r)?|mktime|timelocal",
        "time/tzfile.c",
    ),
    Rule("name services", LIBC, r"_?_?nss_\w+|__res_\w+|__resolv_\w+|__check_pf", "nss/, resolv/"),
    Rule(
        "static result buffer",
        LIBC,
        r"get(pw|gr|sp|sg|host|net|proto|serv|rpc|alias)(nam|uid|gid|ent|by\w+)(_r)?",
        "nss/getXXbyYY.c",
    ),
    Rule("static result buffer", LIBC, r"(__)?strerror(_l)?|strsignal", "string/strerror_l.c"),
    Rule("libc's own start", LIBC, r"__libc_(setup|init|early_init)\w*|init_cacheinfo", "csu/"),
)

# Names the C and C++ standards reserve; in a static executable they are the only trace of the runtime.
STATIC_RULES: tuple[Rule, ...] = tuple(
    replace(r, module=ANY, function=EH_ALLOC if r.module == LIBSTDCXX else rf"(?=_)({r.function})")
    for r in RULES
    if r.module in (LIBC, LIBSTDCXX) and r.function != ANY
)

RUNTIME_MODULE = re.compile(f"({LOADER}|{LIBC}|{LIBSTDCXX}|{LIBGCC})")
PYTHON_MODULE = re.compile(r"(.*/)?(python[\d.]*[dmt]?|libpython[\w.-]*|lib-dynload/.*)")
PYTHON_FRAMES = "[python]"  # the module of frames in Python
PYTHON_IMPORT_FILES = "<frozen importlib"  # what their names begin with
_PYTHON_IMPORT = re.compile(r"PyImport_ImportModuleLevel(Object)?|import_find_and_load")  # Python/import.c
JIT_FRAMES = "[JIT]"  # of generated code that its compiler has named
SCRIPT_FRAMES = frozenset({PYTHON_FRAMES, JIT_FRAMES})
PYTHON_INTERFACE = "PyMem_SetAllocator"  # exported by interpreters whose objects do not come by malloc
SHIM_MODULE = re.compile(r"(.*-)?libmemleak(-preload)?\.so(\.\d+)?")
ALLOCATOR = re.compile(
    r"(__libc_|__rtld_|__GI_+|__)*(malloc|calloc|realloc|reallocarray|memalign|aligned_alloc|posix_memalign|valloc"
    r"|pvalloc)(_hook_ini|_impl|_check|_compat)?|(_mid|_int)_(malloc|calloc|realloc|memalign)(\.\w+)*"
    r"|operator new(\[\])?\(.*|mmap(64)?|__mmap(64)?"
)


def site_kind(frames: Sequence[Frame], inuse_objects: int = 1) -> Literal["user", "runtime"]:
    """`runtime` for memory that the C/C++ runtime holds for itself until exit, by RULES; else `user`.

    frames: innermost first. Only the runtime's innermost part of the stack counts: frames after the allocator's
    own and before the first of the program or another library. Memory that a library function returns to its caller
    (strdup, fopen) stays the user's.
    """
    outer = _without_allocator(frames)
    part = _runtime_part(outer)
    is_static = not part
    names = [(module_name(frame.module), frame.function) for frame in (part or outer[:2])]
    innermost = names[:1] if is_static else names
    for (module, function), (caller_module, _) in zip(innermost, [*names[1:], ("", "")], strict=False):
        for rule in _rules_of(module, function, caller_module, is_static):
            if rule.max_objects is None or inuse_objects <= rule.max_objects:
                return "runtime"
    return "user"


@lru_cache(maxsize=65_536)
def _rules_of(module: str, function: str, caller_module: str, is_static: bool) -> tuple[Rule, ...]:
    """The rules that match."""
    return tuple(
        rule
        for rule in (STATIC_RULES if is_static else RULES)
        if re.fullmatch(rule.function, function)
        and re.fullmatch(rule.module, module)
        and re.fullmatch(rule.caller_module, caller_module)
    )


@lru_cache(maxsize=65_536)
def module_name(path: str) -> str:
    """The last part of a module's path, without the kernel's mark of an unlinked file."""
    return PurePosixPath(path.removesuffix(" (deleted)")).name


def _without_allocator(frames: Sequence[Frame]) -> Sequence[Frame]:
    for i, frame in enumerate(frames):
        # the traced function itself, as sites.py puts it first
        is_call = not frame.module and not frame.address
        if not is_call and not _is_allocator(frame.module, frame.function):
            return frames[i:]
    return ()


@lru_cache(maxsize=65_536)
def _is_allocator(module: str, function: str) -> bool:
    return bool(SHIM_MODULE.fullmatch(module_name(module)) or ALLOCATOR.fullmatch(function))


@lru_cache(maxsize=65_536)
def is_runtime(module: str) -> bool:
    return RUNTIME_MODULE.fullmatch(module_name(module)) is not None


def imports_python_module(frame: Frame) -> bool:
    """Whether the code that the frame calls runs once in a process: Python keeps the module."""
    if frame.module == PYTHON_FRAMES:
        return (frame.file or "").startswith(PYTHON_IMPORT_FILES)
    return _PYTHON_IMPORT.fullmatch(frame.function) is not None


def _runtime_part(frames: Sequence[Frame]) -> Sequence[Frame]:
    for i, frame in enumerate(frames):
        if not is_runtime(frame.module):
            return frames[:i]
    return frames


ANONYMOUS = "[anon]"  # executable memory that has no name

# ART's code caches: art/runtime/jit/jit_memory_region.cc (jit-cache, jit-zygote-cache by memfd_create(2); before Android 10
# ashmem), art/libartbase/base/mem_map.cc (the prefix dalvik-). Other compilers' by the names that they give their memory
# (prctl(2), PR_SET_VMA_ANON_NAME; memfd_create(2)).
_CODE_CACHE = re.compile(
    r"/memfd:jit-(zygote-)?cache( \(deleted\))?|/dev/ashmem/dalvik-[^/]*jit[^/]*( \(deleted\))?|\[anon:(?i:.*jit.*)\]"
)


def is_generated(path: str) -> bool:
    """Tests a mapping's path. Addresses in generated code mean nothing in another run."""
    return path == ANONYMOUS or path.startswith("[anon:") or _CODE_CACHE.fullmatch(path) is not None


def code_label(path: str) -> str:
    """The label: `[JIT]` if the memory is named so, else `[generated code]`."""
    return "[JIT]" if _CODE_CACHE.fullmatch(path) else "[generated code]"
