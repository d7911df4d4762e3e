"""The shim's own code under sanitizers: modules that lie about themselves, and what many threads share."""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gcc import DEVICE, gcc, run_sanitized, sanitized

HERE = Path(__file__).resolve().parents[1] / "programs"
CALLS = ("freestanding/sandbox", "freestanding/clock", "freestanding/bytes")  # what all parts use
READER = ("freestanding/mappings", "hooks/elf", "hooks/relocations", *CALLS)
LIBRARY = HERE / "slot_library.c"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("hostile") / "reader"
    return sanitized(program, "address,undefined", HERE / "parts" / "hostile_modules.c", *sources(*READER))


def sources(*names: str) -> list[Path]:
    return [DEVICE / "preload" / f"{name}.c" for name in names]


def linked(folder: Path, *flags: str) -> Path:
    library = folder / "library.so"
    gcc("-shared", "-fPIC", "-O2", "-w", *flags, LIBRARY, "-o", library)
    return library


def packed(folder: Path) -> Path:
    """With Android's packed relocations, as its linker has read them since API 23."""
    gcc("-c", "-fPIC", "-fno-plt", "-O2", "-w", LIBRARY, "-o", folder / "library.o")
    lld = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--pack-dyn-relocs=android"]
    # A few hundred, for fewer are not packed.
    (folder / "many.c").write_text(
        "extern char other[]; void *many[] = { "
        + "other, " * 300
        + "};\n__attribute__((weak)) char other[8];\n"
    )
    gcc("-c", "-fPIC", folder / "many.c", "-o", folder / "many.o")
    subprocess.run(
        [*lld, "--hash-style=both", folder / "library.o", folder / "many.o", "-o", folder / "library.so"], check=True
    )  # fmt: skip
    sections = subprocess.run(
        ["readelf", "-SW", folder / "library.so"], capture_output=True, text=True, check=True
    )
    assert "ANDROID_RELA" in sections.stdout or "LOOS+0x2" in sections.stdout, sections.stdout
    return folder / "library.so"


@pytest.mark.parametrize("form", ["gnu-hash", "sysv-hash", "packed"])
def test_what_lies_is_read_to_an_end(reader: Path, tmp_path: Path, form: str) -> None:
    library = packed(tmp_path) if form == "packed" else linked(tmp_path, f"-Wl,--hash-style={form[:-5]}")
    run_sanitized(reader, library, "10000")


HOOK = (*READER, "hooks/modules", "hooks/slots", "hooks/books", "hooks/plt_hook")
SEGMENT = (*CALLS, *(f"segment/{name}" for name in ("segment", "shadow", "table", "keys", "ring", "thread")))
RULES = ("stacks/frame_resolve", "stacks/code_lines", *CALLS)


@pytest.mark.parametrize(
    ("name", "parts", "words", "sanitizer"),
    [
        ("table_stress", SEGMENT, ["0", "256"], "thread"),  # table, keys and rings under many threads
        ("table_stress", SEGMENT, ["0", "256"], "address,undefined"),
        ("thread_slots", SEGMENT, [""], "thread"),  # of threads that follow each other
        ("thread_slots", SEGMENT, [""], "address,undefined"),
        ("resolve_stress", RULES, ["{libc}"], "thread"),  # rules of code that goes away
        ("resolve_stress", RULES, ["{libc}"], "address,undefined"),
        ("first_hash", (*CALLS, "stacks/stack_key"), [""], "thread"),
        ("no_python_race", (*CALLS, "stacks/python_frames"), ["200000"], "address,undefined"),
        ("python_look", CALLS, ["5", "6"], "address,undefined"),  # an interpreter of garbage
        ("plt_stress", HOOK, ["{folder}/plug"], "thread"),  # modules come and go on all threads
        pytest.param("plt_stress", HOOK, ["{folder}/plug"], "address,undefined", marks=pytest.mark.proof),
    ],
)
def test_many_threads(
    name: str, parts: tuple[str, ...], words: list[str], sanitizer: str, tmp_path: Path
) -> None:
    # The thread sanitizer knows no locks of the loader. It forgives a module's name for that, but not the 0 behind it, which
    # counts if it begins a word of 8 bytes.
    folder = tmp_path / ("plugs" if len(str(tmp_path / "plugs" / "plug0")) % 8 else "plugins")
    folder.mkdir()
    for i in range(4):
        shutil.copyfile(linked(tmp_path), folder / f"plug{i}")
    cfi = sorted((DEVICE / "cfi").glob("*.c")) if parts == RULES else []
    source = HERE / "parts" / f"{name}.c"
    program = sanitized(tmp_path / name, sanitizer, "-w", source, *sources(*parts), *cfi, "-ldl")
    maps = Path("/proc/self/maps").read_text()
    (libc,) = {
        line.split()[-1]
        for line in maps.splitlines()
        if " r-xp " in line and re.search(r"/libc\.so\.6$|/libc-2", line)
    }
    for word in words:
        run_sanitized(program, word.format(libc=libc, folder=folder), ASAN_OPTIONS="detect_leaks=0")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library makes a system call of x86_64")
def test_slots_of_modules_that_are_being_relocated(tmp_path: Path) -> None:
    """The loader makes them read-only beside us."""
    library = linked(tmp_path, "-fno-plt", "-Wl,-z,relro,-z,now", "-DRELOCATION_NS=12000000")
    for i in range(4):
        shutil.copyfile(library, tmp_path / f"plug{i}")
    source = HERE / "parts" / "plt_stress.c"
    program = sanitized(tmp_path / "plt_stress", "undefined", "-w", source, *sources(*HOOK), "-ldl")
    run_sanitized(program, tmp_path / "plug", "1000")
