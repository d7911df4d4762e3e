"""The PLT hook: a shim brought into a running program patches its slots, follows its loader, and leaves no trace."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.wire.blocks import HookedFlag, Rows
from tests.support.attached_program import (
    AttachedProgram,
    compile_program,
    protections,
    session_name,
    slots,
)
from tests.support.gcc import gcc
from tests.support.preload_session import PreloadSession, await_process, find_parts
from tests.support.workloads import FLAGS

HERE = Path(__file__).resolve().parents[1] / "programs"
ALLOCATOR = {"malloc", "calloc", "realloc", "free"}

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads relocations of x86_64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attach")


@pytest.fixture(scope="module", params=["now", "lazy"])
def workload(request: pytest.FixtureRequest, folder: Path) -> Path:
    return compile_program(folder, f"-Wl,-z,{request.param}", name=f"workload-{request.param}")


@pytest.fixture(scope="module")
def bound_now(folder: Path) -> Path:
    return compile_program(folder, "-Wl,-z,now", name="workload")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    path = folder / "libleaky.so"
    gcc(*FLAGS, "-fPIC", "-shared", "-w", HERE / "slot_library.c", "-o", path)
    return path


def rows_of(session: PreloadSession, name: str) -> Rows:
    rows = np.concatenate(session.hooked)
    return rows[rows["name"] == name.encode()]


def test_from_attach_on_everything_is_counted_and_before_nothing(workload: Path) -> None:
    with AttachedProgram(workload) as program:
        program.do("leak 3 77", "copy 44")
        session = program.attached(lambda: program.do("leak 100 31", "copy 55", *["free"] * 6))
    assert session.sizes() == {31: 98, 55: 1}
    assert session.status["alloc_objects"] == 101
    assert session.status["untracked_frees"] == 4


def test_blocks_after_detach_are_ignored(bound_now: Path) -> None:
    with AttachedProgram(bound_now) as program:
        name = session_name()

        def act() -> None:
            program.do(f"attach {name} mode=plt", "leak 5 31", "detach", "leak 7 99", "copy 98", "free")
            program.end()

        session = await_process(name, act)
    assert session.sizes() == {31: 5}


def test_every_slot_and_protection_is_as_it_was(workload: Path) -> None:
    with AttachedProgram(workload) as program:
        pid = program.process.pid
        program.do("copy 20", "attach nobody")  # binds what the rest of the test calls
        before, pages = slots(pid), protections(pid)
        while_attached = {}

        def act() -> None:
            while_attached.update(slots(pid))
            assert protections(pid) == pages

        name = session_name()

        def attach() -> None:
            program.do(f"attach {name} mode=plt")
            act()
            program.do("detach")
            assert {slot for slot in before if slots(pid)[slot] != before[slot]} == set()
            assert protections(pid) == pages
            program.end()

        await_process(name, attach)
    changed = {slot for slot in before if while_attached[slot] != before[slot]}
    assert {(Path(path).name, symbol) for path, symbol, _ in changed} >= {
        *((workload.name, symbol) for symbol in ("malloc", "calloc", "realloc", "free", "dlopen", "dlclose")),
        *(("libc.so.6", symbol) for symbol in ALLOCATOR),
    }
    assert not [symbol for _, symbol, _ in changed if symbol in ("puts", "strdup", "pthread_create")]


def test_a_library_that_comes_later_is_traced_from_its_code_and_says_since_when(
    bound_now: Path, library: Path
) -> None:
    with AttachedProgram(bound_now) as program:
        session = program.attached(
            lambda: program.do(f"open {library}", "call leak_here 333", "call leak_here 334")
        )
    assert {size: n for size, n in session.sizes().items() if size in (333, 334, 4001)} == {333: 1, 334: 1}
    (row,) = rows_of(session, library.name)
    assert row["n_slots"] == 1
    assert session.process_times_ns[0] < row["since_ns"] < row["patched_ns"]
    assert set(rows_of(session, "libc.so.6")["since_ns"]) == {0}


def test_the_library_is_known_by_a_name_that_is_looked_up(
    bound_now: Path, library: Path, folder: Path
) -> None:
    """dlopen() of a bare name goes by the RUNPATH of who calls: the program's, not the shim's."""
    program_path = compile_program(folder, "-Wl,-rpath,$ORIGIN", name="workload-runpath")
    with AttachedProgram(program_path) as program:
        answers: list[str] = []

        def act() -> None:
            answers.extend(program.do(f"open {library.name}", "call leak_here 333"))

        session = program.attached(act)
    assert answers == ["ok", "ok"]
    assert session.sizes()[333] == 1


def test_a_library_that_goes_is_forgotten_and_may_come_again(bound_now: Path, library: Path) -> None:
    with AttachedProgram(bound_now) as program:
        session = program.attached(
            lambda: [program.do(f"open {library}", f"call leak_here {300 + i}", "close") for i in range(10)]
        )
    assert {size for size in session.sizes() if 300 <= size < 310} == set(range(300, 310))
    assert 1 <= len(rows_of(session, library.name)) <= 10  # once for each slot


def test_libraries_come_and_go_on_all_threads_while_slots_are_patched_and_restored(
    bound_now: Path, library: Path, folder: Path
) -> None:
    for i in range(4):
        shutil.copyfile(library, folder / f"libplug.so{i}")
    with AttachedProgram(bound_now) as program:
        program.do(f"plug 4 1.2 {folder}/libplug.so")
        for size in (511, 512, 513, 514):
            name = session_name()

            def act(name: str = name, size: int = size) -> None:
                assert program.do(f"attach {name} mode=plt", f"leak 100 {size}", "detach") == ["0", "ok", "0"]

            assert await_process(name, act, stops=True).sizes()[size] == 100
        assert program.do("wait") == ["ok"]
        program.end()


def test_detach_and_attach_again_under_load(bound_now: Path) -> None:
    with AttachedProgram(bound_now) as program:
        program.do("load 4 1.5")
        for size in (501, 502, 503):
            name = session_name()

            def act(name: str = name, size: int = size) -> None:
                assert program.do(f"attach {name} mode=plt", f"leak 100 {size}", "detach") == ["0", "ok", "0"]

            session = await_process(name, act, stops=True)
            assert session.sizes()[size] == 100
            assert not set(session.sizes()) & {501, 502, 503} - {size}
        program.do("wait")
        program.end()


def test_a_second_attach_takes_over(bound_now: Path) -> None:
    with AttachedProgram(bound_now) as program:
        first, second = session_name(), session_name()

        def in_first() -> None:
            program.do(f"attach {first} mode=plt", "leak 10 31")

            def in_second() -> None:
                assert program.do(f"attach {second} mode=plt", "leak 20 32") == ["0", "ok"]
                program.end()

            sessions.append(await_process(second, in_second))

        sessions: list[PreloadSession] = []
        sessions.append(await_process(first, in_first))
    assert [one.sizes() for one in sessions] == [{32: 20}, {31: 10}]


def test_children_are_not_their_parent(bound_now: Path) -> None:
    with AttachedProgram(bound_now) as program:
        session = program.attached(lambda: program.do("fork 1000 41", "leak 2 42"))
    assert session.sizes() == {42: 2}


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("", 1),
        ("name:0123456789abcdef", 1),
        ("name:0123456789abcdef mode=", 1),
        ("name:0123456789abcdef mode=pltx", 1),
        ("name:0123456789abcde mode=plt", 1),
        ("n" * 500 + ":0123456789abcdef mode=plt", 1),
        ("memleak-nobody:0123456789abcdef mode=plt", -111),  # ECONNREFUSED
        ("memleak-nobody:0123456789abcdef mode=inline", 6),
    ],
)
def test_what_cannot_be_joined_is_refused_and_nothing_changes(
    bound_now: Path, line: str, result: int
) -> None:
    with AttachedProgram(bound_now) as program:
        before = slots(program.process.pid)
        assert program.do(f"attach {line}") == [str(result)]
        assert slots(program.process.pid) == before


def test_an_allocator_of_the_program_s_own_is_not_seen_and_that_is_said(folder: Path) -> None:
    source = folder / "static.c"
    source.write_text(
        "static char pool[1 << 20]; static unsigned long used;\n"
        "static void *own(unsigned long n) { used += n + 15 & ~15ul; return pool + used - (n + 15 & ~15ul); }\n"
        "#define malloc own\n#define calloc(n, s) own((n) * (s))\n#define realloc(p, n) own(n)\n#define free(p) (void)(p)\n"
        "#define stdlib_h\n"
        + (HERE / "slot_workload.c").read_text().replace("#include <stdlib.h>", "double atof(const char *);")
    )
    program_path = compile_program(folder, source=source, name="workload-static")
    with AttachedProgram(program_path) as program:
        session = program.attached(lambda: program.do("leak 100 31", "copy 55"))
    assert session.sizes() == {55: 1}  # libc's
    assert rows_of(session, "")["n_slots"].tolist() == [0]


@pytest.fixture(scope="module")
def other_version(folder: Path) -> Path:
    """Its malloc has an unused version: two of them, one the default. The loader skips it."""
    source, script, library = folder / "other.c", folder / "other.map", folder / "libother.so"
    source.write_text(
        "#include <stddef.h>\nvoid *other(size_t n) { return (void *)n; }\nvoid nothing(void *p) {}\n"
        '__asm__(".symver other, malloc@OTHER_1");\n__asm__(".symver other, malloc@@OTHER_2");\n'
        '__asm__(".symver nothing, free@OTHER_1");\n'
    )
    script.write_text("OTHER_1 {};\nOTHER_2 {} OTHER_1;\n")
    link = ["-fPIC", "-shared", f"-Wl,--version-script={script}"]
    gcc(*FLAGS, "-w", *link, source, "-o", library)
    return library


DEBUG = "libc_malloc_debug.so.0"


@pytest.mark.parametrize("before", [False, True], ids=["alone", "behind another version"])
def test_an_allocator_with_the_requested_symbol_version(
    workload: Path, other_version: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """glibc's own: malloc@GLIBC_2.2.5, which is no default version and yet what the loader binds."""
    monkeypatch.setenv("MALLOC_CHECK_", "3")  # has a heap of its own, and ends who gives it a block of libc's
    with AttachedProgram(workload, f"{other_version}:{DEBUG}" if before else DEBUG) as program:
        if DEBUG not in Path(f"/proc/{program.process.pid}/maps").read_text():
            pytest.skip(f"there is no {DEBUG}, which comes with glibc 2.34 and later")
        session = program.attached(lambda: program.do("leak 100 31", "copy 55", "free", "leak 1 77"))
    assert (session.sizes()[31], session.sizes()[77]) == (99, 1)


def test_an_allocator_with_another_symbol_version(workload: Path, other_version: Path) -> None:
    with AttachedProgram(workload, str(other_version)) as program:
        assert str(other_version) in Path(f"/proc/{program.process.pid}/maps").read_text()
        session = program.attached(lambda: program.do("leak 100 31", "copy 55"))
    assert session.sizes() == {31: 100, 55: 1}


def test_an_allocator_that_a_resolver_chooses_is_refused(folder: Path, bound_now: Path) -> None:
    """The program does not call libc's own function: called by the hook, that would get blocks of another heap."""
    source, library = folder / "chosen.c", folder / "libchosen.so"
    source.write_text(
        "#include <stddef.h>\nextern void *__libc_malloc(size_t);\n"
        "static void *chosen(size_t n) { return __libc_malloc(n); }\n"
        "static void *(*choose(void))(size_t) { return chosen; }\n"
        'void *malloc(size_t) __attribute__((ifunc("choose")));\n'
    )
    gcc(*FLAGS, "-fPIC", "-shared", "-w", source, "-o", library)
    with AttachedProgram(bound_now, str(library)) as program:
        before = slots(program.process.pid)
        for _ in range(2):  # the library stays: a second try gets the same refusal
            assert program.do(f"attach {session_name()} mode=plt") == ["9"]
            assert slots(program.process.pid) == before


def test_slots_in_memory_shared_with_others_are_refused(folder: Path) -> None:
    """The program maps a file over its own slots, read-only and shared: no store may go there."""
    source = folder / "shared.c"
    source.write_text(
        (HERE / "slot_workload.c").read_text().replace(
            "int main(int argc", "#include <sys/mman.h>\n#include <link.h>\n"
            "static int share(struct dl_phdr_info *info, size_t bytes, void *unused) {\n"
            "  for (int i = 0; i < info->dlpi_phnum; i++) {\n"
            "    if (info->dlpi_phdr[i].p_type != PT_GNU_RELRO) continue;\n"
            "    unsigned long low = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr & ~4095ul;\n"
            "    unsigned long high = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz & ~4095ul;\n"
            '    int fd = memfd_create("slots", 0);\n'
            "    write(fd, (void *)low, high - low);\n"
            "    mmap((void *)low, high - low, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);\n"
            "  }\n  return 1;\n}\n"
            "__attribute__((constructor)) static void share_all(void) { dl_iterate_phdr(share, 0); }\n"
            "int main(int argc",
        )
    )  # fmt: skip
    program_path = compile_program(folder, "-Wl,-z,now", source=source, name="workload-shared")
    with AttachedProgram(program_path) as program:
        before = slots(program.process.pid)
        session = program.attached(lambda: program.do("leak 100 31", "copy 55"))
    assert session.sizes() == {55: 1}
    (row,) = rows_of(session, "")
    assert row["n_slots"] == 0
    assert row["n_refused"] >= 4
    assert row["flags"] == HookedFlag.READ_ONLY | HookedFlag.PROGRAM
    assert before


@pytest.mark.parametrize(
    ("tag", "value", "is_told"),
    [
        ("DT_JMPREL", "8", False),  # readable memory without a relocation of a known kind
        ("DT_JMPREL", "~0ul - 64", True),
        ("DT_PLTRELSZ", "~0ul", True),
        ("DT_SYMTAB", "1ul << 46", True),
    ],
)
def test_a_dynamic_section_that_lies_is_read_no_further(
    folder: Path, tag: str, value: str, is_told: bool
) -> None:
    """The program spoils its own, after the loader is done with it. The other modules are hooked all the same."""
    source = folder / "spoilt.c"
    source.write_text(
        (HERE / "slot_workload.c").read_text().replace(
            "int main(int argc", "#include <sys/mman.h>\n#include <link.h>\n"
            "static int spoil(struct dl_phdr_info *info, size_t bytes, void *unused) {\n"
            "  for (int i = 0; i < info->dlpi_phnum; i++) {\n"
            "    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;\n"
            "    ElfW(Dyn) *entry = (void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);\n"
            "    mprotect((void *)((unsigned long)entry & ~4095ul), 8192, PROT_READ | PROT_WRITE);\n"
            f"    for (; entry->d_tag; entry++) if (entry->d_tag == {tag}) entry->d_un.d_val = {value};\n"
            "  }\n  return 1;\n}\n"
            "__attribute__((constructor)) static void spoil_own(void) { dl_iterate_phdr(spoil, 0); }\n"
            "int main(int argc",
        )
    )  # fmt: skip
    program_path = compile_program(folder, "-Wl,-z,now", source=source, name="workload-spoilt")
    with AttachedProgram(program_path) as program:
        session = program.attached(lambda: program.do("leak 100 31", "copy 55"))
    assert session.sizes() == {55: 1}  # libc's; those of the program's own slots are not to be found
    (row,) = rows_of(session, "")
    assert row["n_slots"] == 0 and bool(row["flags"] & HookedFlag.MALFORMED) == is_told


def test_under_musl(folder: Path) -> None:
    """Its linker is its libc, asks for no caller, and holds no lock while modules are looked at."""
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc is not installed (apt-get install musl-tools)")
    source, program, library = (
        HERE.parents[1] / "sessions" / "bionic" / "attach.c",
        folder / "musl",
        folder / "musl.so",
    )
    subprocess.run(["musl-gcc", "-O2", "-fno-builtin", "-w", source, "-o", program], check=True)
    subprocess.run(
        ["musl-gcc", "-shared", "-fPIC", "-O2", "-w", HERE / "slot_library.c", "-o", library], check=True
    )
    name = session_name()
    out = []

    def act() -> None:
        command = [program, find_parts()[1], f"{name} mode=plt", library]
        out.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    session = await_process(name, act, stops=True)
    assert out == ["attach 0\nlibrary 1\ndetach 0\n"]
    assert session.sizes() == {103: 6, 107: 1, 133: 1, 53: 1, 70001: 1}


def test_a_preloaded_process_is_not_attached_to(bound_now: Path) -> None:
    process = subprocess.run(
        [bound_now, find_parts()[1]], env={"LD_PRELOAD": str(find_parts()[1])}, input="attach x\n",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.stdout.splitlines() == ["ready", "3"]
