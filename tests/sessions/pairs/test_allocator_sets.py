"""The shipped sets of tcmalloc and mimalloc on Debian's libraries: what is kept by their own names, to the byte."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import FLAGS, WORKLOADS
from tests.sessions.pairs.test_by_shim import TRACERS, traced
from tests.support.debian_packages import packages
from tests.support.gcc import gcc

pytestmark = pytest.mark.proof

KEPT = {"malloc": (100 * 1009, 100), "calloc": (300, 1), "realloc": (700, 1), "posix_memalign": (333, 1)}
ALLOCATORS = {
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4", "tc_"),
    "mimalloc": ("libmimalloc2.0", "libmimalloc.so.2.0", "mi_"),
}
OWN = {
    "tcmalloc": {
        "memalign": (444, 1),
        "new": (555, 1),
        "new_aligned": (666, 1),
    },  # newarray_aligned is an alias
    "mimalloc": {
        "memalign": (444, 1),
        "malloc_small": (55, 1),
        "new_n": (555, 1),
        "recalloc": (666, 1),
        "zalloc_aligned": (777, 1),
    },
}


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_what_is_kept(allocator: str, tracer: str, tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("needs gcc on x86_64")
    package, name, prefix = ALLOCATORS[allocator]
    library = next(packages("amd64", package).rglob(name)).resolve()
    program = tmp_path / "program"
    flags = [*FLAGS, "-fno-builtin", f"-D{allocator.upper()}", f"-Wl,-rpath,{library.parent}"]
    gcc(*flags, "-o", program, WORKLOADS / "own_names.c", library)
    report, _ = traced(tracer, tmp_path, (allocator,), program)
    kind = f"pair:{allocator}"
    sites = [site for site in report["sites"] if site["frames"][1]["function"] == "main"]
    assert {site["kind"] for site in report["sites"]} == {kind}
    assert {site["end"] for site in sites} == {"ROOT"}
    found: dict[str, tuple[int, int]] = {}
    for site in sites:
        function = site["frames"][0]["function"].removeprefix(prefix)
        held = found.get(function, (0, 0))
        found[function] = held[0] + site["inuse_space"], held[1] + site["inuse_objects"]
    assert found == KEPT | OWN[allocator]
