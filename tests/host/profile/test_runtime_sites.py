"""Stacks of the runtime itself: a real program under valgrind, and stacks copied from real runs."""

import functools
import subprocess
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.runtime_sites import imports_python_module, site_kind
from tests.support.oracles.symbols import compile_cxx, need

# Each line allocates blocks that stay; the word after // says whose they are.
PROGRAM = r"""
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <iconv.h>
#include <iostream>
#include <libintl.h>
#include <locale.h>
#include <pwd.h>
#include <thread>
static void handler() {}
int main() {
    puts("x"); // runtime
    setlocale(LC_ALL, "C.UTF-8"); // runtime
    textdomain("abc"); // runtime
    bindtextdomain("abc", "/tmp"); // runtime
    for (int i = 0; i < 40; i++) atexit(handler); // runtime
    tzset(); // runtime
    getpwnam("root"); // runtime
    std::thread([] { }).detach(); // thread
    iconv_open("UTF-16", "ISO-8859-15"); // mixed
    strdup("leak"); // user
    FILE *file = fopen("/etc/passwd", "r"); // user
    char *line = nullptr; size_t size = 0;
    getline(&line, &size, file); // mixed: the line is the user's, the FILE's buffer is not
    getchar(); // runtime
    newlocale(LC_ALL_MASK, "C.UTF-8", nullptr); // user
    dlopen("libm.so.6", RTLD_NOW); // runtime
    asprintf(&line, "%d", 23); // user
    new std::string(1009, 'x'); // user
    open_memstream(&line, &size); // user
    std::cout << line; // any
}
"""


def stacks_at_exit(program: Path, folder: Path) -> list[list[Frame]]:
    """Stacks of all blocks that valgrind finds outstanding."""
    output = folder / "leaks.xml"
    options = "--leak-check=full --show-leak-kinds=all --num-callers=40 --xml=yes"
    options += f" --run-libc-freeres=no --run-cxx-freeres=no --xml-file={output}"
    command = [need("valgrind"), *options.split(), str(program)]
    subprocess.run(command, capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"})
    return [
        [frame_of(f) for f in error.find("stack") or ()] for error in ElementTree.parse(output).iter("error")
    ]


def frame_of(element: ElementTree.Element) -> Frame:
    function = (element.findtext("fn") or "").split("@")[0]
    line = int(element.findtext("line") or 0)
    return Frame(
        0, element.findtext("obj") or "", "", 0, function, 0, False, "", element.findtext("file"), line
    )


@pytest.fixture(scope="module")
def program_stacks(tmp_path_factory: pytest.TempPathFactory) -> list[list[Frame]]:
    folder = tmp_path_factory.mktemp("site_kind")
    return stacks_at_exit(compile_cxx(PROGRAM, folder / "program", "-O0", "-pthread", "-w"), folder)


def program_line(stack: list[Frame]) -> int:
    return next((f.line or 0 for f in stack if f.module.endswith("/program")), 0)


def test_each_line_of_a_real_program(program_stacks: list[list[Frame]]) -> None:
    kinds: dict[int, set[str]] = defaultdict(set)
    for frames in program_stacks:
        kinds[program_line(frames)].add(site_kind(frames))
    for line, text in enumerate(PROGRAM.split("\n"), 1):
        _, _, whose = text.partition("// ")
        if whose == "runtime":
            assert kinds[line] <= {"runtime"}, text
        elif whose == "user":
            assert kinds[line] == {"user"}, text
        elif whose.startswith("mixed"):
            assert kinds[line] == {"user", "runtime"}, text
    assert kinds[0] == {"runtime"}  # no line of ours: the libstdc++ pool


def test_without_debug_files_only_iconv_tables_are_missed(program_stacks: list[list[Frame]]) -> None:
    for frames in program_stacks:
        stripped = [frames[0]]
        for frame in frames[1:]:
            is_known = frame.function in dynamic_symbols(frame.module) or frame.module.endswith("/program")
            stripped.append(frame if is_known else replace(frame, function=""))
        if site_kind(stripped) != site_kind(frames):
            assert site_kind(stripped) == "user"
            assert any(f.function == "iconv_open" for f in stripped), stripped


@functools.cache
def dynamic_symbols(path: str) -> set[str]:
    listing = subprocess.run(
        [need("nm"), "-D", "--defined-only", path], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1].split("@")[0] for line in listing.splitlines()}


LIBC, LD = "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"
LIBSTDCXX = "/usr/lib/libstdc++.so.6.0.30"
EXE = "/srv/app"
BIONIC = "/apex/com.android.runtime/lib64/bionic/libc.so"


def stack(*frames: tuple[str, str]) -> list[Frame]:
    return [Frame(0x7000 + i, m, "", 16 * i, f, 0, False, "") for i, (f, m) in enumerate(frames)]


def of(module: str, names: str) -> list[tuple[str, str]]:
    return [(name, module) for name in names.split()]


GCC_S = "/lib/libgcc_s.so.1"
MAIN = ("main", EXE)
BUFFER = "malloc _IO_file_doallocate"
# Real stacks through a stripped libstdc++ and a stripped glibc.
RUNTIME = {
    "emergency pool of a stripped libstdc++": stack(
        ("malloc", LIBC), ("", LIBSTDCXX), ("call_init", LD), ("_dl_init", LD), ("", LD)
    ),
    "emergency pool in a static program": stack(*of(EXE, "malloc _GLOBAL__sub_I_eh_alloc.cc main")),
    "stdout of a static program": stack(*of(EXE, f"{BUFFER} puts")),
    "locale in a stripped libc": stack(("malloc", LIBC), ("", LIBC), ("", LIBC), ("setlocale", LIBC), MAIN),
    "time zone in a stripped libc": stack(*of(LIBC, "malloc strdup"), ("", LIBC), ("localtime", LIBC)),
    "thread vector in a stripped ld.so": stack(
        ("calloc", LIBC), ("", LD), ("_dl_allocate_tls", LD), ("pthread_create", LIBC), MAIN
    ),
    "behind our own shim": stack(
        ("malloc", "/tmp/libmemleak-preload.so"), *of(LIBC, "_IO_file_doallocate puts"), MAIN
    ),
    "stdin": stack(*of(LIBC, f"{BUFFER} _IO_file_underflow scanf"), MAIN),
    "a FILE that is read by fgets": stack(*of(LIBC, f"{BUFFER} _IO_file_underflow fgets"), MAIN),
    "the same in a static program": stack(*of(EXE, f"{BUFFER} _IO_new_file_underflow fgets main")),
    "stdio of bionic": stack(*of(BIONIC, "malloc __smakebuf puts"), MAIN),
    "a FILE of jemalloc's start": stack(
        *(("malloc", BIONIC), ("operator new[](unsigned long)", BIONIC)),
        *(*of(BIONIC, "__sfp fopen sysconf je_malloc"), ("", "/tmp/libmemleak.so"), MAIN),
    ),
    "environment": stack(*of(LIBC, "realloc __add_to_environ setenv"), MAIN),
    "unwind tables": stack(("malloc", LIBC), ("", GCC_S), ("_Unwind_Find_FDE", GCC_S)),
}

CALL = Frame(0, "", "", 0, "calloc", 0, None, None, False, "registers")
RUNTIME["the traced call as the pipeline puts it first"] = [CALL, *RUNTIME["unwind tables"][1:]]

USER = {
    "a FILE": stack(*of(LIBC, "malloc __fopen_internal"), MAIN),
    "strdup": stack(*of(LIBC, "malloc strdup"), MAIN),
    "a constructor of the user's library run by the loader": stack(
        ("malloc", LIBC), ("init", "/srv/libapp.so"), *of(LD, "call_init _dl_init")
    ),
    "a string grown by libstdc++": stack(
        ("malloc", LIBC), ("operator new(unsigned long)", LIBSTDCXX), ("", LIBSTDCXX), MAIN
    ),
    "the user's callback under a runtime function": stack(
        ("malloc", LIBC), ("compare", EXE), ("setlocale", LIBC), MAIN
    ),
    "a partial stack that ends in libc": stack(("malloc", LIBC), ("", LIBC)),
    "the user's own function with a name of libc's": stack(*of(EXE, "malloc tzset main")),
    "nothing but the allocator": stack(("malloc", LIBC)),
    "no frames": [],
}


@pytest.mark.parametrize("name", RUNTIME)
def test_runtime(name: str) -> None:
    assert site_kind(RUNTIME[name]) == "runtime"


@pytest.mark.parametrize("name", USER)
def test_user(name: str) -> None:
    assert site_kind(USER[name]) == "user"


def test_many_stdio_buffers_of_one_stack_are_leaked_files() -> None:
    frames = stack(*of(LIBC, f"{BUFFER} fputs"), MAIN)
    assert site_kind(frames, inuse_objects=1) == "runtime"
    assert site_kind(frames, inuse_objects=23) == "user"


@pytest.mark.parametrize(
    ("module", "function", "file", "imports"),
    [
        ("[python]", "_find_and_load", "<frozen importlib._bootstrap>", True),
        ("/usr/lib/libpython3.11.so.1.0", "PyImport_ImportModuleLevelObject", None, True),
        ("[python]", "<module>", "/srv/importlib/app.py", False),
        ("/usr/bin/python3.11", "PyImport_GetModule", None, False),
    ],
)
def test_imports_of_python(module: str, function: str, file: str | None, imports: bool) -> None:
    frame = Frame(1, module, "", 1, function, 0, False, "cfi", file, 1)
    assert imports_python_module(frame) == imports
