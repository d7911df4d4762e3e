"""The shipped sets of tcmalloc, mimalloc and jemalloc on Debian's libraries: what is kept by their own names, to the byte."""

import itertools
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import FLAGS, WORKLOADS, traced
from tests.support.debian_packages import packages
from tests.support.gcc import gcc

pytestmark = pytest.mark.proof

KEPT = {"malloc": (100 * 1009, 100), "calloc": (300, 1), "realloc": (700, 1), "posix_memalign": (333, 1)}
LIBRARIES = {
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"),
    "mimalloc": ("libmimalloc2.0", "libmimalloc.so.2.0"),
    "jemalloc": ("libjemalloc-dev", "libjemalloc.a"),
}
OWN = {
    # newarray_aligned is an alias
    "tcmalloc": {"memalign": 444, "new": 555, "new_aligned": 666},
    "mimalloc": {"memalign": 444, "malloc_small": 55, "new_n": 555, "recalloc": 666, "zalloc_aligned": 777},
    "jemalloc": {"memalign": 444, "mallocx": 222},
}
PREFIXES = {"tcmalloc": "tc_", "mimalloc": "mi_", "jemalloc": "je_"}
PUBLIC = (
    "malloc", "calloc", "realloc", "free", "memalign", "aligned_alloc", "posix_memalign", "valloc", "mallocx",
    "rallocx", "dallocx", "sdallocx", "malloc_usable_size",
)  # fmt: skip


def prefixed(archive: Path, folder: Path) -> Path:
    """A static jemalloc whose public names are given the prefix."""
    (folder / "names").write_text("".join(f"{name} je_{name}\n" for name in PUBLIC))
    words = ["objcopy", f"--redefine-syms={folder / 'names'}", archive, folder / "libje.a"]
    subprocess.run(words, check=True)
    return folder / "libje.a"


@pytest.mark.parametrize(
    ("allocator", "tracer"),
    [
        *itertools.product(("tcmalloc", "mimalloc"), ("bpf", "preload")),
        ("jemalloc", "bpf"),  # its functions are called through no slot
    ],
)
def test_what_is_kept(allocator: str, tracer: str, tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or not all(map(shutil.which, ("gcc", "objcopy"))):
        pytest.skip("needs gcc and objcopy on x86_64")
    package, name = LIBRARIES[allocator]
    library = next(packages("amd64", package).rglob(name)).resolve()
    program = tmp_path / "program"
    flags = [*FLAGS, "-fno-builtin", f"-D{allocator.upper()}", f"-Wl,-rpath,{library.parent}"]
    libraries = [prefixed(library, tmp_path), "-lm", "-lstdc++"] if allocator == "jemalloc" else [library]
    gcc(*flags, "-o", program, WORKLOADS / "own_names.c", *libraries)
    report = traced(tracer, tmp_path, (allocator,), program).report
    sites = [site for site in report["sites"] if site["frames"][1]["function"] == "main"]
    assert {site["kind"] for site in report["sites"]} == {f"pair:{allocator}"}
    assert {site["end"] for site in sites} == {"ROOT"}
    found: dict[str, tuple[int, int]] = {}
    for site in sites:
        function = site["frames"][0]["function"].removeprefix(PREFIXES[allocator])
        held = found.get(function, (0, 0))
        found[function] = held[0] + site["inuse_space"], held[1] + site["inuse_objects"]
    assert found == KEPT | {function: (size, 1) for function, size in OWN[allocator].items()}
