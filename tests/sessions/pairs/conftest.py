"""Programs with pairs of their own, and sessions that follow these."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.workloads import Run, built, run

WORKLOADS = Path(__file__).parent / "programs"
FLAGS = ("-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-g", "-pthread")
POOL = str(WORKLOADS / "pool.toml")
TRACERS = (pytest.param("bpf", marks=pytest.mark.bpf), "preload")


@pytest.fixture(scope="session")
def pool() -> Path:
    """A program with a pool of its own, which keeps blocks, file descriptors and threads."""
    return built(WORKLOADS / "pool")


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


def traced(
    tracer: str, folder: Path, sets: tuple[str, ...], *command: str | Path, codes: tuple[int, ...] = (0,)
) -> Run:
    """A session that follows these sets of pairs. The command's own exit code must be 0."""
    pairs = [word for one in sets for word in ("--pairs", one)]
    done = run(tracer, folder, "--", *command, options=["-q", *pairs], codes=codes)
    assert done.report["target"]["exit_status"] == 0
    return done
