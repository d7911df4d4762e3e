"""Probed functions, and the objects they are in."""

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.tracers.agent.session_options import AllocatorChoice, Probe, SessionOptions
from memleak_android.host.tracers.inline.heap import _functions
from memleak_android.host.tracers.local.bpf import plan_session
from memleak_android.host.tracers.probes.allocator import (
    FUNCTION_NUMBERS,
    find_allocator,
    lends_memory,
    plan_probes,
    unprobed_functions,
)
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, FIRST_REGION_FUNCTION, Function

LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
DEVICE = Path(__file__).parents[4] / "device"
OPTIONS = AllocatorChoice()

ALLOCATOR_C = """
#include <stddef.h>
static char arena[4096];
static size_t used;
__attribute__((noinline)) void *P(malloc)(size_t n) { used += n; return arena + used - n; }
__attribute__((noinline)) void *P(calloc)(size_t n, size_t m) { return P(malloc)(n * m); }
void *P(memalign)(size_t a, size_t n) { used = (used + a - 1) & -a; return P(malloc)(n); }
__attribute__((alias(S(memalign)))) void *P(aligned_alloc)(size_t, size_t);
__attribute__((noinline)) void P(free)(void *p) { if (p) used--; }
void P(cfree)(void *p) { P(free)(p); }
#ifdef CPLUSPLUS
void *_Znwm(size_t n) { void *p = P(malloc)(n); return p ? p : arena; }
void _ZdlPv(void *p) { P(free)(p); }
void _ZdlPvm(void *p, size_t n) { used -= n; P(free)(p); }
#endif
"""


def needs_libc() -> None:
    if not os.path.exists(LIBC):
        pytest.skip(f"no {LIBC} here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    made = tmp_path_factory.mktemp("allocator")
    (made / "allocator.c").write_text(ALLOCATOR_C)
    (made / "main.c").write_text("#include <stdlib.h>\nint main(void) { free(malloc(1)); return 0; }\n")
    (made / "empty.c").write_text("int nothing(void) { return 0; }\n")
    return made


def gcc(folder: Path, output: str, *arguments: str) -> str:
    command = ["gcc", "-O2", "-fno-builtin", "-w", "-o", output, *arguments]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"gcc cannot build this here: {done.stderr.strip().splitlines()[-1]}")
    return str(folder / output)


def library(folder: Path, output: str, prefix: str = "", *flags: str) -> str:
    macros = (f"-DP(name)={prefix}##name" if prefix else "-DP(name)=name", f'-DS(name)="{prefix}"#name')
    soname = f"-Wl,-soname,{output}.7"
    return gcc(folder, output, "-shared", "-fPIC", soname, *macros, *flags, "allocator.c")


def functions(probes: list[Probe]) -> Counter[str]:
    return Counter(probe.function for probe in probes)


def refusal(path: str, options: AllocatorChoice = OPTIONS) -> str:
    with pytest.raises(TargetError) as caught:
        plan_probes(path, options)
    return str(caught.value)


def of_machine(path: str, machine: int) -> str:
    """The same file with another machine in its header."""
    data = bytearray(Path(path).read_bytes())
    data[18:20] = machine.to_bytes(2, "little")
    Path(path).write_bytes(data)
    return path


def test_numbers_are_those_of_the_wire_format() -> None:
    text = (DEVICE / "wire.h").read_text()
    numbers = {name.lower(): int(value) for name, value in re.findall(r"\bML_FN_(\w+) = (\d+),", text)}
    del numbers["unknown"], numbers["max"], numbers["pair"]  # no functions of an allocator
    assert {name: number for name, number in numbers.items() if number < 16} == FUNCTION_NUMBERS
    regions = [name for name, number in numbers.items() if number >= FIRST_REGION_FUNCTION]
    assert regions == [
        one.name.lower() for one in Function if FIRST_REGION_FUNCTION <= one < FIRST_PAIR_FUNCTION
    ]


def test_tables_in_c_have_the_names_of_the_shipped_set() -> None:
    """The agent's table cannot be the shim's: each is compiled without the other. Both in order of enum ml_function."""
    names = (DEVICE / "agent/probes/function_names.h").read_text()
    assert {name.lower(): text for name, text in re.findall(r"\[ML_FN_(\w+)\] = \"(\w+)\"", names)} == {
        name: name for name in FUNCTION_NUMBERS
    }
    table, _ = (
        (DEVICE / "preload/entries/function_table.h")
        .read_text()
        .split("/* Calls by which a program would harm itself")
    )
    shim = re.findall(r"^\tX\((\w+),", table, re.MULTILINE)
    regions = [one.name.lower() for one in Function if FIRST_REGION_FUNCTION <= one < FIRST_PAIR_FUNCTION]
    others = ("execve", "execvpe", "fexecve", "shmdt", "brk")  # told as others of their family
    assert [name for name in shim if name not in others] == [*FUNCTION_NUMBERS, *regions]


def test_glibc() -> None:
    needs_libc()
    probes, notes = plan_probes(LIBC, OPTIONS)
    found = functions(probes)
    assert set(found.values()) == {1}
    assert {"malloc", "calloc", "realloc", "posix_memalign", "memalign", "free"} <= set(found)
    assert "aligned_alloc" not in found  # one address with memalign
    assert len(notes) == len(probes)
    for probe in probes:
        assert probe.text_low <= probe.function_offset <= probe.entry_offset < probe.text_high
        assert probe.return_offset == (None if probe.function == "free" else probe.entry_offset)


def test_aliases_and_forwarders_are_probed_once(folder: Path) -> None:
    probes, notes = plan_probes(library(folder, "plain.so"), OPTIONS)
    assert functions(probes) == Counter(["malloc", "calloc", "memalign", "free"])
    assert "cfree: not probed, it only jumps to a function that is" in notes
    probes, _ = plan_probes(library(folder, "cplusplus.so", "", "-DCPLUSPLUS"), OPTIONS)
    # _Znwm does more than malloc, _ZdlPvm more than free; _ZdlPv is free
    assert functions(probes)["malloc"] == functions(probes)["free"] == 2


def test_prefix(folder: Path) -> None:
    path = library(folder, "prefixed.so", "je_")
    probes, _ = plan_probes(path, AllocatorChoice(symbols_prefix="je_"))
    assert functions(probes)["malloc"] == 1
    assert refusal(path) == (
        f"no function malloc found in {path}; name the object that holds the allocator with --object,"
        " its prefix with --symbols-prefix, or use a build that is not stripped"
    )


def test_objects_that_cannot_be_probed(folder: Path) -> None:
    assert refusal("/no/such/file") == "cannot open /no/such/file: No such file or directory"
    assert refusal(str(folder / "main.c")) == f"{folder}/main.c cannot be read as an ELF file: no ELF magic"
    half = library(folder, "half.so", "", "-Dfree=other")
    assert refusal(half).startswith(f"no function free found in {half}; ")
    small = gcc(folder, "small.so", "-m32", "-shared", "-nostdlib", "-fPIC", "empty.c")
    assert refusal(small) == f"{small} is 32-bit, which cannot be traced; use a 64-bit build of it"


@pytest.mark.parametrize(
    ("versions", "is_it"),
    [("", True), ("GLIBC_2.2.5 {};", True), ("OTHER_1 {};", False), ("OTHER_1 {}; GLIBC_2.2.5 {} OTHER_1;", True)],
)  # fmt: skip
def test_the_allocator_is_the_one_with_the_version_that_is_asked_for(
    folder: Path, versions: str, is_it: bool
) -> None:
    """Non-default versions: the loader binds the program's malloc@GLIBC_2.2.5 to the first of this very name."""
    needs_libc()
    names = [word for word in versions.split() if word[0] in "GO" and ";" not in word]
    symvers = "".join(f'__asm__(".symver f{i}, malloc@{name}");' for i, name in enumerate(names))
    functions_ = "".join(f"void *f{i}(unsigned long n) {{ return 0; }}" for i in range(len(names)))
    source = f"{functions_}{symvers}" or "void *malloc(unsigned long n) { return 0; }"
    (folder / "versions.c").write_text(source)
    (folder / "versions.map").write_text(versions)
    flags = ["-Wl,--version-script=versions.map"] if versions else []
    path = gcc(folder, f"versions{len(versions)}.so", "-shared", "-fPIC", *flags, "versions.c")
    objects = [LoadedObject(one, one) for one in ("/bin/true", path, LIBC)]
    assert find_allocator(objects, OPTIONS).path == (path if is_it else LIBC)


def test_functions_that_a_resolver_chooses(folder: Path) -> None:
    """malloc: refused, its address is unknown. Another function: the rest is measured, and the result is incomplete."""
    source = """
void *mine(unsigned long n) { return (void *)n; }
static void *(*choose(void))(unsigned long) { return mine; }
void *NAME(unsigned long) __attribute__((ifunc("choose")));
void free(void *p) {}
"""
    (folder / "chosen.c").write_text(source)
    words = ["-O2", "-w", "-shared", "-fPIC", "-fno-builtin", "chosen.c"]
    path = gcc(folder, "chosen.so", "-DNAME=malloc", *words)
    assert refusal(path).startswith(f"malloc of {path} is chosen when the program starts (ifunc), ")
    with pytest.raises(TargetError, match=r"malloc of .* is chosen when the program starts"):
        _functions(ElfFile(path), "")
    path = gcc(folder, "partly.so", "-DNAME=valloc", "-Dmine=malloc", *words)
    probes, notes = plan_probes(path, OPTIONS)
    assert functions(probes) == {"malloc": 1, "free": 1}
    assert unprobed_functions(notes) == [
        "valloc: not probed, its address is chosen at run time (ifunc): what it allocates is missing"
    ]


def test_another_machine(folder: Path) -> None:
    path = library(folder, "foreign.so")
    assert refusal(of_machine(path, 8)) == f"{path} is machine 8 code, which cannot be traced"
    arm = "32-bit arm code, where the kernel places no uprobes; use --tracer preload with it"
    assert refusal(of_machine(path, 40)) == f"{path} is {arm}"
    of_machine(path, 183 if platform.machine() != "aarch64" else 62)
    with pytest.raises(TargetError, match=r"is (arm64|x86_64) code, which cannot be traced here"):
        plan_session(SessionOptions(pid=os.getpid(), object=path))


def test_static_programs(folder: Path) -> None:
    path = gcc(folder, "static", "-static", "main.c")
    one = LoadedObject(path, path)
    assert find_allocator([one], OPTIONS) == one
    probes, _ = plan_probes(path, OPTIONS)
    assert {"malloc", "free"} <= set(functions(probes))
    subprocess.run(["strip", path], check=True)
    with pytest.raises(TargetError, match=f"^no function malloc found in {path}; "):
        find_allocator([one], OPTIONS)
    subprocess.run(["objcopy", "--add-section", f".go.buildinfo={folder}/main.c", path], check=True)
    with pytest.raises(TargetError, match=f"^{path} is a Go program without C: .*; use go tool pprof$"):
        find_allocator([one], OPTIONS)


def test_the_first_object_in_search_order_is_the_allocator(folder: Path) -> None:
    needs_libc()
    own = library(folder, "first.so")
    nothing = gcc(folder, "nothing.so", "-shared", "-fPIC", "empty.c")
    objects = [LoadedObject(f"/inside/{os.path.basename(path)}", path) for path in (nothing, own, LIBC)]
    assert find_allocator(objects, OPTIONS) is objects[1]
    assert find_allocator(objects[::-1], OPTIONS) is objects[2]
    for name in ("libc.so.6", "libc", "/inside/libc.so.6"):
        assert find_allocator(objects, AllocatorChoice(object=name)) is objects[2]
    assert find_allocator(objects, AllocatorChoice(object="first.so.7")) is objects[1]
    assert find_allocator(objects[:1], AllocatorChoice(object=own)) == LoadedObject(own, own)
    has = "it has nothing.so, first.so, libc.so.6"
    with pytest.raises(TargetError, match=f"^no object named libother in the program; {has}$"):
        find_allocator(objects, AllocatorChoice(object="libother"))
    with pytest.raises(TargetError, match="no function malloc found in any of the program's 2 objects"):
        find_allocator([objects[0], objects[0]], OPTIONS)


@pytest.mark.parametrize(
    "code",
    [
        "int vfork(void); int begin(void) { return vfork(); }",
        "int __lsan_is_turned_off(void); int begin(void) { return __lsan_is_turned_off(); }",
        "int __lsan_is_turned_off(void) { return 0; }",
    ],
)
def test_programs_that_lend_their_memory(code: str, folder: Path) -> None:
    """A file that cannot be read does not hide those behind it, nor end the session."""
    plain = gcc(folder, "main", "main.c")
    (folder / "lending.c").write_text(code)
    lending = gcc(folder, "lending", "lending.c", "-shared", "-fPIC", "-fno-builtin")
    (folder / "no.so").write_bytes(b"\x7fELF" + bytes(60))
    objects = [LoadedObject(str(path), str(path)) for path in (folder / "no.so", folder / "gone.so", plain)]
    assert not lends_memory(objects)
    assert lends_memory([*objects, LoadedObject(str(lending), str(lending))])


def test_plan_of_a_command(folder: Path) -> None:
    needs_libc()
    program = gcc(folder, "main", "main.c")
    options = SessionOptions(command=(program, "an argument"))
    plan = plan_session(options, {})
    assert os.path.samefile(plan.allocator.open_path, LIBC)
    own = library(folder, "preloaded.so")
    plan = plan_session(options, {"LD_PRELOAD": own})
    assert plan.allocator.path == own
    assert {probe.path for probe in plan.probes} == {own}
    lines = [*options.bpf_lines(), *plan.lines()]
    assert lines[0] == "wire 2" and "arg an%20argument" in lines
    one = plan.probes[0]
    offsets = (one.function_offset, one.entry_offset, one.return_offset, one.text_low, one.text_high)
    assert f"probe 1 {' '.join(f'{n:x}' for n in offsets)} {own}" in lines
    assert sum(line.startswith("probe ") for line in lines) == len(plan.probes)
