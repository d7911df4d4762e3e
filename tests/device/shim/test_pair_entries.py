"""The shim's entries for functions of --pairs leave arguments, results and exceptions as they are, on both architectures."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1] / "programs"
SHIM = HERE.parents[2] / "device" / "preload"
ODD = HERE.parents[1] / "sessions" / "pairs" / "programs"
NAMES = ("many", "double", "long_double", "large", "mixed", "vector", "variadic", "throw", "outer", "done")
MACHINES = [("", ()), ("aarch64-linux-gnu-", ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"))]


@pytest.mark.parametrize(("prefix", "emulator"), MACHINES)
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_calls_are_what_they_were(prefix: str, emulator: tuple[str, ...], level: str, tmp_path: Path) -> None:
    for program in (f"{prefix}g++", f"{prefix}gcc", *emulator[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    entries, program_ = tmp_path / "entries.o", tmp_path / "calls"
    run([f"{prefix}gcc", "-O2", "-c", "-I", SHIM.parent, "-o", entries, SHIM / "entries" / "pair_entries.c"])
    checks = tmp_path / "checks.o"
    run([f"{prefix}g++", level, "-Dmain=odd_main", "-c", "-o", checks, ODD / "odd_main.cc"])
    sources = [HERE / "pair_entries.cc", ODD / "odd_calls.cc", checks, entries]
    run([f"{prefix}g++", level, "-o", program_, *sources, *(f"-Wl,--wrap=odd_{name}" for name in NAMES)])
    run([*emulator, program_])


def run(argv: list[str | Path]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
