"""Identity of stacks across runs, builds and machines, and the function shown for each."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.site_id import site_id, stable_function, stable_module
from tests.support.builders.profiles import CODEC, LIBC, MALLOC, SERVER, START, frame
from tests.support.gcc import gcc
from tests.support.oracles.symbols import need

ONE = [Frame(0x7F01, "/a/libx.so", "aa", 0x10, "f()", 4, False, "eh_frame", "x.cc", 5)]


def test_id_survives_addresses_moved_lines_and_a_newer_library() -> None:
    other = [Frame(0x5501, "/b/libx-1.2.so.3 (deleted)", "bb", 0x90, "f()", 8, False, "fp", "x.cc", 7)]
    assert site_id(ONE) == site_id(other) == "bf08935499295b1f"


def test_id_tells_stacks_apart() -> None:
    f, g, libc, nameless = (
        frame(SERVER, "f"), frame(SERVER, "g"), frame(LIBC, "f"), frame(SERVER, "", 0x40)
    )  # fmt: skip
    stacks = [
        (f, g), (g, f), (f,), (libc,), (nameless,), (f, nameless), (), (replace(nameless, vaddr=0x50),)
    ]  # fmt: skip
    assert len({site_id(s) for s in stacks}) == len(stacks)
    assert all(len(site_id(s)) == 16 for s in stacks)


def test_nameless_code_is_identified_by_build_and_vaddr() -> None:
    nameless = frame(SERVER, "", 0x40)
    assert site_id([nameless]) == site_id([replace(nameless, address=5)])
    assert site_id([nameless]) != site_id([replace(nameless, build_id="ff")])


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("decode.part.0", "decode"),
        ("decode.constprop.0.isra.1", "decode"),
        ("decode.llvm.1234567890", "decode"),
        ("decode.cold", "decode"),
        ("decode.__uniq.12345.llvm.67", "decode"),
        ("state.1234", "state"),
        ("decode(int) (.part.0)", "decode(int)"),
        ("decode(int) (.isra.0) (.cold)", "decode(int)"),
        ("decode(int) (.isra.0.cold)", "decode(int)"),
        ("decode(int) [clone .constprop.0] [clone .cold]", "decode(int)"),
        ("a::b::h0123456789abcdef", "a::b"),
        ("a::b::h0123456789abcdef.llvm.12", "a::b"),
        ("qsort@@GLIBC_2.2.5", "qsort"),
        ("decode(int) const", "decode(int) const"),
        ("std::vector<int, std::allocator<int>>::push_back(int&&)", None),
        ("A<1.5>::f()", None),
        ("main::{lambda(int)#1}::operator()(int) const", None),
        ("operator\"\" _MB", None),
        (".part.0", ".part.0"),
    ],
)  # fmt: skip
def test_what_a_rebuild_changes_in_a_name_does_not_count(name: str, stable: str | None) -> None:
    assert stable_function(name) == (stable or name)


@pytest.mark.parametrize(
    ("path", "stable"),
    [
        ("/usr/lib/libc.so.6", "libc.so"),
        ("/usr/lib/libc-2.31.so", "libc.so"),
        ("/data/app/~~x==/com.app-y==/base.apk!/lib/arm64-v8a/libapp.so", "libapp.so"),
        ("/usr/bin/python3.11", "python3.11"),
        ("[vdso]", "[vdso]"),
        ("", ""),
    ],
)
def test_module_names(path: str, stable: str) -> None:
    assert stable_module(path) == stable


SOURCE = """
#include <stdlib.h>
void *kept[64];
%s
static __attribute__((noinline)) void *cold_and_hot(int n) { if (n > 3) abort(); return malloc(n * 1000 + 7); }
int main(int argc, char **argv) { for (int i = 0; i < 3; i++) kept[i] = cold_and_hot(argc + i); return 0; }
"""


def test_ids_of_a_real_rebuild_at_another_optimisation_and_line(tmp_path: Path) -> None:
    """GCC makes cold_and_hot.constprop/.part/.isra of it, or not; the names nm shows are stable all the same."""
    need("gcc")
    need("nm")
    names = []
    for level, more in (("-O0", ""), ("-O2", "\n\n\nint another_line;"), ("-O3", "int third_line;")):
        source, program = tmp_path / "a.c", tmp_path / "a"
        source.write_text(SOURCE % more)
        gcc(level, "-fno-inline", "-fipa-sra", "-o", program, source)
        listed = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
        found = {stable_function(line.split()[-1]) for line in listed.splitlines() if "cold_and_hot" in line}
        names.append(found)
    assert names == [{"cold_and_hot"}] * 3


def test_names_of_megabytes_and_broken_bytes() -> None:
    long = [replace(ONE[0], function="x" * 1_000_000 + tail) for tail in ("a", "b")]
    assert site_id(long[:1]) == site_id(long[1:])
    assert site_id([replace(ONE[0], function="x\udcff")]) == site_id([replace(ONE[0], function="x\ufffd")])


def test_the_function_shown_is_the_programs_own() -> None:
    own = frame(SERVER, "planted::grow()")
    vector = frame(SERVER, "std::vector<int, std::allocator<int>>::_M_realloc_insert(int&&)")
    new = frame(LIBC, "operator new(unsigned long)")
    assert responsible_frame((MALLOC, new, vector, own, *START)) == own
    assert responsible_frame((MALLOC, frame(LIBC, "strdup"))) == frame(LIBC, "strdup")
    assert responsible_frame((MALLOC,)) is None
    assert responsible_frame(()) is None


def test_the_function_shown_called_pythons_api_but_no_python_code() -> None:
    api, type_call, evaluates, bytecode = (
        replace(frame(LIBC, function), module=module)
        for function, module in (
            ("PyType_GenericAlloc", "/opt/lib/libpython3.12.so.1.0"),
            ("type_call", "/usr/bin/python3.11"),
            ("_PyEval_EvalFrameDefault", "/opt/lib/libpython3.13t.so.1.0"),
            ("_json_scan", "/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so"),
        )
    )
    extension = frame(CODEC, "RawJSON_new")
    assert responsible_frame((MALLOC, api, bytecode, extension, type_call, evaluates)) == extension
    assert responsible_frame((MALLOC, api, evaluates, type_call, extension, *START)) == api
    assert responsible_frame((MALLOC, frame(LIBC, "strdup"), evaluates, extension)) == evaluates
