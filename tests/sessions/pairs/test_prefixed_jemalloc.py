"""A static, prefixed jemalloc, a pool, file descriptors and threads in one program: each found, exactly."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import WORKLOADS
from tests.support.debian_packages import packages
from tests.support.gcc import gcc
from tests.support.program_server import run_program
from tests.support.workloads import need

pytestmark = [pytest.mark.bpf, pytest.mark.proof]
PUBLIC = (
    "malloc", "calloc", "realloc", "free", "memalign", "aligned_alloc", "posix_memalign", "valloc", "mallocx",
    "rallocx", "dallocx", "sdallocx", "malloc_usable_size",
)  # fmt: skip


def prefixed_program(folder: Path) -> Path:
    """Debian's libjemalloc.a, its public names given the prefix, linked with the workload."""
    if platform.machine() != "x86_64" or not all(map(shutil.which, ("gcc", "objcopy"))):
        pytest.skip("needs gcc and objcopy on x86_64")
    archive = packages("amd64", "libjemalloc-dev") / "usr/lib/x86_64-linux-gnu/libjemalloc.a"
    names, library = folder / "names", folder / "libje.a"
    names.write_text("".join(f"{name} je_{name}\n" for name in PUBLIC))
    subprocess.run(["objcopy", f"--redefine-syms={names}", archive, library], check=True)
    flags = ["-std=gnu11", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
    parts = folder / "pool.o"
    gcc(*flags, "-Dmain=pool_main", "-c", "-o", parts, WORKLOADS / "pool.c")
    program = folder / "prefixed"
    sources = [WORKLOADS / "prefixed.c", parts, library, "-lm", "-ldl", "-lstdc++"]
    gcc(*flags, "-o", program, *sources)
    return program


def test_each_is_found_exactly(tmp_path: Path) -> None:
    need("bpf")
    program, report_file = prefixed_program(tmp_path), tmp_path / "report.json"
    # With "pthread" they would be more than the 64 functions that are traced.
    sets = ["jemalloc", "fd", str(WORKLOADS / "pool.toml")]
    pairs = (word for pair_set in sets for word in ("--pairs", pair_set))
    done = run_program(["-q", *pairs, "--json", report_file, "--", program])
    assert done.returncode == 0, done.stderr
    sites = json.loads(report_file.read_text())["sites"]
    assert {site["end"] for site in sites} == {"ROOT"}
    found = {
        (site["kind"], site["frames"][0]["function"]): (site["inuse_space"], site["inuse_objects"])
        for site in sites
    }
    assert found == {
        ("pair:jemalloc", "je_malloc"): (100 * 1009, 100),
        ("pair:jemalloc", "je_calloc"): (300, 1),
        ("pair:jemalloc", "je_realloc"): (700, 1),
        ("pair:jemalloc", "je_posix_memalign"): (333, 1),
        ("pair:jemalloc", "je_mallocx"): (222, 1),
        ("pair:pool", "pool_take"): (30 * 1001, 30),
        ("pair:pool", "pool_take_many"): (200, 1),
        ("pair:pool", "pool_open"): (300, 1),
        ("pair:pool", "pool_resize"): (700, 1),
        ("pair:fd", "open"): (7, 7),
        ("pair:fd", "pipe"): (1, 1),
        ("pair:fd", "dup2"): (1, 1),
        ("pair:fd", "socketpair"): (2, 2),
    }
