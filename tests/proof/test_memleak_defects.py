"""Defects of libbpf-tools' memleak, each as a test that it fails: what it showed stands in the docstring.

D3, whole stacks without frame pointers: test_containers.py. D11, a target that ends: every test here.
"""

import itertools
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.support.workloads import both_tracers, built, functions, run

START = ["__libc_start_call_main", "__libc_start_main", "_start"]
LIBC = Path("/usr/lib/x86_64-linux-gnu/libc.so.6")


@both_tracers
def test_d1_malloc_that_calls_mmap_keeps_pointer_size_and_stack(tracer: str, tmp_path: Path) -> None:
    """5 × malloc(200000): "1003520 bytes in 5", at page addresses, of 200704 bytes, one frame, in libc."""
    result = run(tracer, tmp_path, "--", built("large_blocks"), options=["--show-allocs"])
    assert result.amounts() == (5 * 200_000, 5)
    blocks = [block for site in result.sites() for block in site["blocks"]]
    assert {(block["address"], block["size"]) for block in blocks} == {
        (printed, 200_000) for printed in result.out.split()[:5]
    }
    for site in result.sites():
        assert site["end"] == "ROOT" and functions(site)[2:] == ["main", *START]


@both_tracers
@pytest.mark.parametrize("options", [[], ["--mmap"]], ids=["heap", "with-regions"])
def test_d2_arena_reservation_is_not_a_block(tracer: str, options: list[str], tmp_path: Path) -> None:
    """2 threads × malloc(64): "134217728 bytes in 1 allocations" on top, the two blocks of 64 bytes missing."""
    result = run(tracer, tmp_path, "--", built("two_arenas"), options=options)
    assert result.amounts() == (128, 2)
    (site,) = result.sites()
    assert "leak_in_arena" in functions(site) and site["end"] == "ROOT"
    arena_made = [site for site in result.sites("mmap") if "leak_in_arena" in functions(site)]
    assert not arena_made


@pytest.mark.proof
@both_tracers
def test_d4_ten_thousand_stacks_all_reported(tracer: str, tmp_path: Path) -> None:
    """10,000 distinct stacks: 25.5 % of them missing from the report."""
    result = run(tracer, tmp_path, "--", built("many_stacks"), "10000", "10000")
    assert result.amounts() == (13 * 10_000, 10_000)
    assert result.totals["unattributed_objects"] == 0
    sites = result.sites()
    assert len({tuple(functions(site)) for site in sites}) == len(sites) == 10_000
    assert {(site["inuse_objects"], site["end"]) for site in sites} == {(1, "ROOT")}


@pytest.mark.proof
@both_tracers
def test_d4_losses_of_a_full_ring_are_reported(tracer: str, tmp_path: Path) -> None:
    """All at once: totals stay exact, a stack that was lost is `unattributed`, and none is merged silently."""
    result = run(tracer, tmp_path, "--", built("many_stacks"), "10000", codes=[0, 6])
    totals = result.totals
    assert (totals["inuse_space"], totals["inuse_objects"]) == (13 * 10_000, 10_000)
    sites = result.sites()
    assert sum(site["inuse_objects"] for site in sites) + totals["unattributed_objects"] == 10_000
    assert all(site["inuse_objects"] == 1 or site.get("approximate") for site in sites)
    assert (result.report["measurement"] == "complete") == (totals["unattributed_objects"] <= 10)


@pytest.mark.proof
@both_tracers
def test_d5_more_than_a_million_live_blocks(tracer: str, tmp_path: Path) -> None:
    """1.2 M live: "1000000 allocations", no warning."""
    result = run(tracer, tmp_path, "--", built("plain_leak"), "1200000", "16")
    assert result.amounts() == (16 * 1_200_000, 1_200_000)
    assert result.report["measurement"] == "complete"


@both_tracers
def test_d5_full_table_is_reported(tracer: str, tmp_path: Path) -> None:
    """A full table was silent."""
    argv = ("--", built("plain_leak"), "400000", "16")  # more than the smallest table takes
    result = run(tracer, tmp_path, *argv, options=["--max-live", "20000"], codes=[6])
    totals = result.totals
    assert result.report["measurement"] == "incomplete" and totals["lost"]["table_full"] > 0
    assert totals["inuse_objects"] + totals["lost"]["table_full"] == 400_000


@both_tracers
@pytest.mark.parametrize(
    ("which", "held"), [("realloc", (1009, 1)), ("zero", (0, 0)), ("memalign", (0, 0)), ("calloc", (0, 0))]
)
def test_d6_d7_failed_calls(tracer: str, which: str, held: tuple[int, int], tmp_path: Path) -> None:
    """malloc(1000), realloc(p, 2^62) = NULL: "Top 0 stacks". posix_memalign = EINVAL: "4242 bytes" that never were."""
    codes = (6,) if which in ("memalign", "calloc") else (0,)  # 6: not one allocation was seen
    result = run(tracer, tmp_path, "--", built("failed_calls"), which, codes=codes)
    assert result.report["target"]["exit_status"] == 0
    assert result.amounts() == held


@both_tracers
def test_d8_regions_of_any_size_and_their_parts(tracer: str, tmp_path: Path) -> None:
    """One mmap of 2 TiB under -C: "0 bytes in 1 allocations"; munmap of a part freed the whole or nothing."""
    result = run(tracer, tmp_path, "--", built("regions"), options=["--mmap"], codes=(6,))
    assert result.amounts() == (0, 0)
    held = {
        name: sum(site["inuse_space"] for site in result.sites("mmap") if name in functions(site))
        for name in ("reserve", "sixteen_pages", "grown")
    }
    assert held == {"reserve": 1 << 41, "sixteen_pages": 11 * 4096, "grown": 7 * 4096}


@pytest.mark.timeout(700)
@both_tracers
@pytest.mark.parametrize(
    ("calls", "size"), [(1500, 1 << 30), pytest.param(17_000_000, 24, marks=pytest.mark.proof)]
)
def test_d8_more_than_40_bits_of_bytes_and_24_of_calls(
    tracer: str, calls: int, size: int, tmp_path: Path
) -> None:
    """Bytes in 40 bits, calls in 24, one carrying into the other."""
    result = run(tracer, tmp_path, "--", built("pairs"), str(calls), str(size), timeout_s=600)
    assert (result.totals["alloc_space"], result.totals["alloc_objects"]) == (calls * size, calls)
    assert result.amounts() == (0, 0)


@pytest.mark.parametrize(("tracer", "sample_bytes"), [("bpf", 1000), ("preload", 1000), ("preload", 20_000)])
def test_d9_sampling_is_unbiased_and_scaled(tracer: str, sample_bytes: int, tmp_path: Path) -> None:
    """100,000 × malloc with -s 10: 15,868 counted (10,000 wanted), bytes not scaled back."""
    argv = ("--", built("plain_leak"), "100000", "104")
    result = run(tracer, tmp_path, *argv, options=["--sample-bytes", str(sample_bytes)])
    true = 100_000 * 104
    if tracer == "bpf":  # the table is exact, only the evidence is thinned
        assert result.amounts() == (true, 100_000)
        return
    (site,) = result.sites()
    assert site["stderr_space"] > 0
    assert abs(site["inuse_space"] - true) < 5 * site["stderr_space"]
    assert site["stderr_space"] < 0.2 * true
    assert abs(site["inuse_objects"] * 104 - site["inuse_space"]) <= 104


def test_d12_long_path_of_the_allocators_library(tmp_path: Path) -> None:
    """-O longer than 31 characters: "failed to open /usr/lib/x86_64-linux-gnu/libc."."""
    folder = tmp_path / ("x" * 200) / ("y" * 200)
    folder.mkdir(parents=True)
    library = folder / "libc.so.6"
    shutil.copy(LIBC, library)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    argv = ("--", built("plain_leak"), "7", "11")
    result = run("bpf", tmp_path, *argv, options=["-O", library], environment=environment)
    assert result.amounts() == (77, 7)
    (site,) = result.sites()
    assert site["end"] == "ROOT"
    refused = run("preload", tmp_path, *argv, options=["-O", library], codes=[5])
    assert "-O" in refused.errors[0]


@both_tracers
@pytest.mark.parametrize("kind", ["absent", "no-program"])
def test_d13_command_that_cannot_be_started(tracer: str, kind: str, tmp_path: Path) -> None:
    """A report of the failed child was printed."""
    command = tmp_path / "command"
    if kind == "no-program":
        command.write_text("no program\n")
    result = run(tracer, tmp_path, "--", command, "1", codes=[4])
    assert result.report == {} and len(result.errors) == 1 and "command" in result.errors[0]


# In `make test`; the others, and all of them slowly, are proofs.
SHORT = (((7, 5), "interleaved", 0), ((997, 3), "after", 0), ((5, 499), "after", 0))
CASES = itertools.product(((7, 5), (997, 3), (5, 499)), ("interleaved", "after"), (0, 1000))


@both_tracers
@pytest.mark.parametrize(
    ("blocks", "order", "pause_us"),
    [pytest.param(*case, marks=() if case in SHORT else pytest.mark.proof) for case in CASES],
)
def test_same_return_address_and_depth(
    tracer: str, blocks: tuple[int, int], order: str, pause_us: int, tmp_path: Path
) -> None:
    program = built("colliding_paths")
    result = run(tracer, tmp_path, "--", program, *map(str, (*blocks, order, pause_us)), codes=[0, 6])
    assert result.totals["inuse_objects"] == sum(blocks)
    found: Counter[str] = Counter()
    for site in result.sites():
        paths = {"first_path", "second_path"} & set(functions(site))
        assert len(paths) == 1, (site, result.totals)
        (path,) = paths
        if not site.get("approximate"):
            found[path] += site["inuse_objects"]
    for path, true in zip(("first_path", "second_path"), blocks, strict=True):
        assert found[path] <= true, "blocks of the other path are counted here, and not called approximate"
    unsure = sum(site["inuse_objects"] for site in result.sites() if site.get("approximate"))
    assert found.total() + unsure + result.totals["unattributed_objects"] == sum(blocks)
