from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gcc import gcc

WORKLOADS = Path(__file__).parent / "programs"
FLAGS = ("-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-g", "-pthread")


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a pool of its own, which keeps blocks, file descriptors and threads."""
    program = tmp_path_factory.mktemp("pairs") / "pool"
    gcc("-std=gnu11", *FLAGS, "-o", program, WORKLOADS / "pool.c")
    return program


@pytest.fixture(scope="session")
def pool_in_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, its pool and what uses it in a library of its own, libpool.so."""
    return in_library(tmp_path_factory.mktemp("slots"), "pool.c", "pool_main.c", ("-Dmain=pool_main",))


def in_library(folder: Path, part: str, main: str, more: tuple[str, ...] = ()) -> Path:
    """A program and lib{its name}.so, which is compiled so that it calls its own exported functions by slots."""
    name, compiler = Path(part).stem.partition("_")[0], "g++" if part.endswith(".cc") else "gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    library = ["-fPIC", "-shared", *more, f"-Wl,-soname,lib{name}.so", "-o", folder / f"lib{name}.so"]
    subprocess.run([compiler, *FLAGS, *library, WORKLOADS / part], check=True)
    linked = [f"-L{folder}", f"-l{name}", "-Wl,-rpath,$ORIGIN", "-o", folder / name]
    subprocess.run([compiler, *FLAGS, WORKLOADS / main, *linked], check=True)
    return folder / name
