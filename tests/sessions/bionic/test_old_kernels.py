"""The shim on kernels that lack newer system calls: it does without, or is refused in one line."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.gcc import gcc
from tests.support.workloads import Run, functions, run

Held = dict[tuple[str, ...], tuple[int, int]]  # (bytes, blocks) by names

HERE = Path(__file__).resolve().parent
# Since when kernels have what the shim and the agent ask for, as far as Linux 3.10 (the oldest of Android 7) has not:
# man-pages, section 2; MADV_WIPEONFORK is an argument and falls back by itself.
NEWER = ("getrandom", "statx", "membarrier", "pidfd_open", "openat2", "close_range", "clone3", "rseq")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The one that takes system calls away, and the workload."""
    folder = tmp_path_factory.mktemp("old_kernels")
    flags = ["-O2", "-g", "-fno-builtin", "-fno-optimize-sibling-calls", "-fomit-frame-pointer", "-pthread"]
    for name in ("without_calls", "workload"):
        gcc(*flags, HERE / f"{name}.c", "-o", folder / name)
    return folder / "without_calls", folder / "workload"


def numbers(*calls: str) -> list[str]:
    """Of system calls on this machine, as its headers have them."""
    text = "#include <sys/syscall.h>\n" + "".join(f"@{name} SYS_{name}\n" for name in calls)
    done = subprocess.run(["gcc", "-E", "-P", "-"], input=text, capture_output=True, text=True, check=True)
    found = dict(re.findall(r"@(\w+) (\d+)", done.stdout))
    return [found[name] for name in calls if name in found]


def measured(programs: tuple[Path, Path], folder: Path, *calls: str, code: int = 0) -> Run:
    without, workload = programs
    words = [str(without), *numbers(*calls), "--", str(workload)]
    environment = dict(os.environ, GLIBC_TUNABLES="glibc.pthread.rseq=0")
    return run("preload", folder, "--", *words, codes=[code], environment=environment)


def held(found: Run) -> Held:
    """Bytes and blocks by the function that gave them and the program's own on the way to it."""
    own = {"leaf", "middle", "outer", "families", "worker", "main"}
    return {
        (names[0], *(name for name in names if name in own)): (site["inuse_space"], site["inuse_objects"])
        for site in found.sites()
        for names in [functions(site)]
    }


@pytest.fixture(scope="module")
def held_else(programs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Held:
    found = held(measured(programs, tmp_path_factory.mktemp("else")))
    assert found["malloc", "leaf", "middle", "outer", "main"] == (2323, 23)
    return found


@pytest.mark.parametrize("calls", [NEWER, ("process_vm_readv",)])
def test_it_does_without(
    programs: tuple[Path, Path], held_else: Held, tmp_path: Path, calls: tuple[str, ...]
) -> None:
    """process_vm_readv(2) is of Linux 3.2, and of CONFIG_CROSS_MEMORY_ATTACH: keys are then less exact, amounts are not."""
    found = measured(programs, tmp_path, *calls)
    assert held(found) == held_else
    assert calls != NEWER or not any(found.totals["lost"].values())


def test_without_shared_memory_it_is_not_measured_and_the_reason_is_said(
    programs: tuple[Path, Path], tmp_path: Path
) -> None:
    found = measured(programs, tmp_path, "memfd_create", code=6)
    assert found.report["measurement"] == "incomplete" and found.totals["lost"]["programs"] == 1
    reason = (
        r"pid \d+ was not measured: its kernel has no memfd_create, and the shim needs it \(Linux 3\.17\)$"
    )
    assert any(re.search(reason, note) for note in found.report["notes"]), found.report["notes"]
    assert "never loaded the shim" not in found.err
    assert "holds 76879 in 31" in found.out  # the program ran as it would have without us
