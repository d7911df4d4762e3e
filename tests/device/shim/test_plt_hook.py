"""The PLT hook: a shim brought into a running program patches its slots, follows its loader, and leaves no trace."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.wire.blocks import HookedFlag, Rows
from tests.support.attached_program import (
    AttachedProgram,
    protections,
    session_name,
    slot_library,
    slot_workload,
    slots,
)
from tests.support.gcc import gcc
from tests.support.preload_session import PreloadSession, await_process, find_parts
from tests.support.workloads import FLAGS, PROGRAMS, ROOT

ALLOCATOR = {"malloc", "calloc", "realloc", "free"}
NONCE = "0123456789abcdef" * 2

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads relocations of x86_64")


both_bindings = pytest.mark.parametrize("binding", ["-Wl,-z,now", "-Wl,-z,lazy"])


def bound_now(preloaded: str | Path = "") -> AttachedProgram:
    return AttachedProgram(slot_workload("-Wl,-z,now"), str(preloaded))


def rows_of(session: PreloadSession, name: str) -> Rows:
    rows = np.concatenate(session.hooked)
    return rows[rows["name"] == name.encode()]


@both_bindings
def test_from_attach_on_everything_is_counted_and_before_nothing(binding: str) -> None:
    with AttachedProgram(slot_workload(binding)) as program:
        program.do("leak 3 77", "copy 44")
        session = program.attached(lambda: program.do("leak 100 31", "copy 55", *["free"] * 6))
    assert session.sizes() == {31: 98, 55: 1}
    assert session.status["alloc_objects"] == 101
    assert session.status["untracked_frees"] == 4


@both_bindings
def test_every_slot_and_protection_is_as_it_was(binding: str) -> None:
    with AttachedProgram(slot_workload(binding)) as program:
        pid = program.process.pid
        program.do("copy 20", "attach nobody")  # binds what the rest of the test calls
        before, pages = slots(pid), protections(pid)
        while_attached, name = {}, session_name()

        def attach() -> None:
            program.do(f"attach {name} mode=plt")
            while_attached.update(slots(pid))
            assert protections(pid) == pages
            program.do("detach")
            assert {slot for slot in before if slots(pid)[slot] != before[slot]} == set()
            assert protections(pid) == pages
            program.end()

        await_process(name, attach)
    changed = {slot for slot in before if while_attached[slot] != before[slot]}
    assert {(Path(path).name, symbol) for path, symbol, _ in changed} >= {
        *(
            ("slot_workload", symbol)
            for symbol in ("malloc", "calloc", "realloc", "free", "dlopen", "dlclose")
        ),
        *(("libc.so.6", symbol) for symbol in ALLOCATOR),
    }
    assert not [symbol for _, symbol, _ in changed if symbol in ("puts", "strdup", "pthread_create")]


def test_a_library_that_comes_later_is_traced_from_its_code_and_says_since_when() -> None:
    with bound_now() as program:
        session = program.attached(
            lambda: program.do(f"open {slot_library()}", "call leak_here 333", "call leak_here 334")
        )
    assert {size: n for size, n in session.sizes().items() if size in (333, 334, 4001)} == {333: 1, 334: 1}
    (row,) = rows_of(session, "slot_library")
    assert row["n_slots"] == 1
    assert session.process_times_ns[0] < row["since_ns"] < row["patched_ns"]
    assert set(rows_of(session, "libc.so.6")["since_ns"]) == {0}


def test_the_library_is_known_by_a_name_that_is_looked_up() -> None:
    """dlopen() of a bare name goes by the RUNPATH of who calls: the program's, not the shim's."""
    with AttachedProgram(slot_workload(f"-Wl,-rpath,{slot_library().parent}")) as program:
        answers: list[str] = []
        session = program.attached(
            lambda: answers.extend(program.do("open slot_library", "call leak_here 333"))
        )
    assert answers == ["ok", "ok"]
    assert session.sizes()[333] == 1


def test_a_library_that_goes_is_forgotten_and_may_come_again() -> None:
    with bound_now() as program:
        session = program.attached(
            lambda: [
                program.do(f"open {slot_library()}", f"call leak_here {300 + i}", "close") for i in range(10)
            ]
        )
    assert {size for size in session.sizes() if 300 <= size < 310} == set(range(300, 310))
    assert 1 <= len(rows_of(session, "slot_library")) <= 10  # once for each slot


@pytest.mark.parametrize("work", ["plug 4 1.2 {folder}/libplug.so", "load 4 1.5"])
def test_detach_and_attach_again_while_threads_load_libraries_or_allocate(work: str, tmp_path: Path) -> None:
    for i in range(4):
        shutil.copyfile(slot_library(), tmp_path / f"libplug.so{i}")
    with bound_now() as program:
        program.do(work.format(folder=tmp_path))
        for size in range(501, 505):
            name = session_name()

            def act(name: str = name, size: int = size) -> None:
                assert program.do(f"attach {name} mode=plt", f"leak 100 {size}", "detach") == ["0", "ok", "0"]

            sizes = await_process(name, act, stops=True).sizes()
            assert {one: sizes[one] for one in sizes if 501 <= one < 505} == {size: 100}
        assert program.do("wait") == ["ok"]
        program.end()


def test_a_second_attach_is_refused_while_an_agent_is_there() -> None:
    with bound_now() as program:
        first, second = session_name(), session_name()

        def in_first() -> None:
            program.do(f"attach {first} mode=plt", "leak 10 31")

            def in_second() -> None:
                assert program.do(f"attach {second} mode=plt", "leak 20 32") == ["10", "ok"]
                program.end()

            in_second()

        sessions: list[PreloadSession] = []
        sessions.append(await_process(first, in_first))
    assert [one.sizes() for one in sessions] == [{31: 10, 32: 20}]


def test_children_are_not_their_parent() -> None:
    with bound_now() as program:
        session = program.attached(lambda: program.do("fork 1000 41", "leak 2 42"))
    assert session.sizes() == {42: 2}


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("", 1),
        (f"name:{NONCE}", 1),
        (f"name:{NONCE} mode=", 1),
        (f"name:{NONCE} mode=pltx", 1),
        (f"name:{NONCE[1:]} mode=plt", 1),
        ("n" * 500 + f":{NONCE} mode=plt", 1),
        (f"memleak-nobody:{NONCE} mode=plt", -111),  # ECONNREFUSED
        (f"memleak-nobody:{NONCE} mode=inline", 6),
    ],
)
def test_what_cannot_be_joined_is_refused_and_nothing_changes(line: str, result: int) -> None:
    with bound_now() as program:
        before = slots(program.process.pid)
        assert program.do(f"attach {line}") == [str(result)]
        assert slots(program.process.pid) == before


@pytest.fixture(scope="module")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its malloc has an unused version: two of them, one the default. The loader skips it."""
    folder = tmp_path_factory.mktemp("other")
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


def test_addresses_of_a_program_that_is_not_moved_lead_to_its_slots(tmp_path: Path) -> None:
    """Each module gets the address of the program's PLT entry for it."""
    source = tmp_path / "taken.c"
    source.write_text("#include <stdlib.h>\nvoid *(*taken(void))(size_t) { return malloc; }\n")
    with AttachedProgram(slot_workload("-Wl,-z,now", "-no-pie", "-fno-pie", str(source))) as program:
        session = program.attached(lambda: program.do("leak 100 31", "copy 55"))
    assert session.sizes() == {31: 100, 55: 1}
    assert not np.concatenate(session.hooked)["n_foreign"].any()


DEBUG = "libc_malloc_debug.so.0"


@both_bindings
@pytest.mark.parametrize("before", [False, True], ids=["alone", "behind another version"])
def test_an_allocator_with_the_requested_symbol_version(
    binding: str, other_version: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """glibc's own: malloc@GLIBC_2.2.5, which is no default version and yet what the loader binds."""
    monkeypatch.setenv("MALLOC_CHECK_", "3")  # has a heap of its own, and ends who gives it a block of libc's
    with AttachedProgram(slot_workload(binding), f"{other_version}:{DEBUG}" if before else DEBUG) as program:
        if DEBUG not in Path(f"/proc/{program.process.pid}/maps").read_text():
            pytest.skip(f"there is no {DEBUG}, which comes with glibc 2.34 and later")
        session = program.attached(lambda: program.do("leak 100 31", "copy 55", "free", "leak 1 77"))
    assert (session.sizes()[31], session.sizes()[77]) == (99, 1)


def test_an_allocator_with_another_symbol_version(other_version: Path) -> None:
    with bound_now(other_version) as program:
        assert str(other_version) in Path(f"/proc/{program.process.pid}/maps").read_text()
        session = program.attached(lambda: program.do("leak 100 31", "copy 55"))
    assert session.sizes() == {31: 100, 55: 1}


def test_an_allocator_that_a_resolver_chooses_is_refused(tmp_path: Path) -> None:
    """The program does not call libc's own function: called by the hook, that would get blocks of another heap."""
    source, library = tmp_path / "chosen.c", tmp_path / "libchosen.so"
    source.write_text(
        "#include <stddef.h>\nextern void *__libc_malloc(size_t);\n"
        "static void *chosen(size_t n) { return __libc_malloc(n); }\n"
        "static void *(*choose(void))(size_t) { return chosen; }\n"
        'void *malloc(size_t) __attribute__((ifunc("choose")));\n'
    )
    gcc(*FLAGS, "-fPIC", "-shared", "-w", source, "-o", library)
    with bound_now(library) as program:
        before = slots(program.process.pid)
        for _ in range(2):  # the library stays: a second try gets the same refusal
            assert program.do(f"attach {session_name()} mode=plt") == ["9"]
            assert slots(program.process.pid) == before


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (("-fvisibility=hidden", str(PROGRAMS / "own_allocator.c")), 0),
        (("-DSHARE_SLOTS",), HookedFlag.READ_ONLY),
        (("-DSPOIL=DT_JMPREL", "-DVALUE=8"), 0),  # readable memory without a relocation of a known kind
        (("-DSPOIL=DT_JMPREL", "-DVALUE=~0ul - 64"), HookedFlag.MALFORMED),
        (("-DSPOIL=DT_PLTRELSZ", "-DVALUE=~0ul"), HookedFlag.MALFORMED),
        (("-DSPOIL=DT_SYMTAB", "-DVALUE=1ul << 46"), HookedFlag.MALFORMED),
    ],
    ids=["own allocator", "shared", "other kind", "beyond the end", "endless", "far symbols"],
)
def test_slots_that_cannot_be_patched_are_reported(flags: tuple[str, ...], refusal: int) -> None:
    """The program's own, which it shares with others, lies about or has none of. The other modules are hooked all the same."""
    with AttachedProgram(slot_workload("-Wl,-z,now", *flags)) as program:
        session = program.attached(lambda: program.do("leak 100 31", "copy 55"))
    assert session.sizes() == {55: 1}  # libc's
    (row,) = rows_of(session, "")
    assert row["n_slots"] == 0 and (row["n_refused"] >= 4) == (refusal == HookedFlag.READ_ONLY)
    assert row["flags"] & (HookedFlag.READ_ONLY | HookedFlag.MALFORMED) == refusal


def test_under_musl(tmp_path: Path) -> None:
    """Its linker is its libc, asks for no caller, and holds no lock while modules are looked at."""
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc is not installed (apt-get install musl-tools)")
    program = tmp_path / "musl"
    library = tmp_path / "musl.so"
    build = ["musl-gcc", "-O2", "-fno-builtin", "-w"]
    source = ROOT / "tests" / "sessions" / "bionic" / "attach.c"
    subprocess.run([*build, source, "-o", program], check=True)
    subprocess.run([*build, "-shared", "-fPIC", PROGRAMS / "slot_library.c", "-o", library], check=True)
    name = session_name()
    out = []

    def act() -> None:
        command = [program, find_parts()[1], f"{name} mode=plt", library]
        out.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    session = await_process(name, act, stops=True)
    assert out == ["attach 0\nlibrary 1\ndetach 0\n"]
    assert session.sizes() == {103: 6, 107: 1, 133: 1, 53: 1, 70001: 1}


def test_a_preloaded_process_is_not_attached_to() -> None:
    with bound_now(find_parts()[1]) as program:
        assert program.do("attach x") == ["3"]
