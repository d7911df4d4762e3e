"""The PLT hook's own code under sanitizers: modules that lie about themselves, and modules that come and go meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gcc import gcc

HERE = Path(__file__).resolve().parents[1] / "programs"
PARTS = HERE.parents[2] / "device"
SOURCES = ("hooks/maps", "hooks/elf", "hooks/relocations", "freestanding/bytes")
LIBRARY = HERE / "slot_library.c"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or shutil.which("setarch") is None:
        pytest.skip("gcc or setarch is not installed")
    program = tmp_path_factory.mktemp("hostile") / "reader"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
    sources = [HERE / "hostile_modules.c", *(PARTS / "preload" / f"{name}.c" for name in SOURCES)]
    subprocess.run(
        ["gcc", *flags, "-fsanitize=address,undefined", f"-I{PARTS}", f"-I{PARTS / 'preload'}", *sources, "-o", program],
        check=True,
    )  # fmt: skip
    return program


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
    run = subprocess.run(
        ["setarch", "-R", reader, library, "10000"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")


HOOK = (*SOURCES, "hooks/modules", "hooks/pages", "hooks/books", "hooks/plt_hook")


@pytest.mark.parametrize("sanitizer", [pytest.param("address,undefined", marks=pytest.mark.proof), "thread"])
def test_modules_come_and_go_on_all_threads(tmp_path: Path, sanitizer: str) -> None:
    if shutil.which("gcc") is None or shutil.which("setarch") is None:
        pytest.skip("gcc or setarch is not installed")
    library = linked(tmp_path)
    for i in range(4):
        shutil.copyfile(library, tmp_path / f"plug{i}")
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    flags += [f"-fsanitize={sanitizer}", f"-I{PARTS}", f"-I{PARTS / 'preload'}"]
    sources = [HERE / "plt_stress.c", *(PARTS / "preload" / f"{name}.c" for name in HOOK)]
    gcc(*flags, *sources, "-o", tmp_path / "stress", "-ldl")
    run = subprocess.run(
        ["setarch", "-R", tmp_path / "stress", tmp_path / "plug"], env={"ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
