"""The shim under bionic and under glibc of arm64 and arm32: totals by the program's own count, stacks by CFI and EHABI."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from memleak_android.host.errors import ExitCode
from tests.support.foreign_libc import ForeignLibc, each_libc
from tests.support.workloads import Run, functions, run

WORKLOAD = Path(__file__).with_name("workload.c")
OWN_COUNT = re.compile(r"^holds (\d+) in (\d+) of (\d+) in (\d+); preloaded (\d)$", re.MULTILINE)
# Blocks that Android 6's and 8's libc takes for itself and gives back: the FILE of /proc/cpuinfo, a thread's handlers.
LIBC_S_OWN_BLOCKS, LIBC_S_OWN_BYTES = 10, 8192
CHAIN = ["leaf", "middle", "outer"]
# Of each stack the size of its blocks, how many there are, and who called: innermost first, up to the program's own last.
HELD = {
    (101, 23): ["malloc", *CHAIN, "main"],
    (997, 4): ["malloc", *CHAIN, "worker"],
    (133, 1): ["calloc", "families", "main"],
    (70001, 1): ["realloc", "families", "main"],
    (211, 1): ["posix_memalign", "families", "main"],
    (223, 1): ["memalign", "families", "main"],
}


@dataclass(frozen=True, slots=True)
class Measured:
    libc: ForeignLibc
    run: Run

    @property
    def own_count(self) -> tuple[int, ...]:
        """Returns bytes and blocks held, bytes and blocks allocated, 1 if it found our variables."""
        found = OWN_COUNT.search(self.run.out)
        assert found, self.run.err
        return tuple(map(int, found.groups()))


@pytest.fixture(scope="module", params=each_libc)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    libc: ForeignLibc = request.param
    libc.need()
    folder = tmp_path_factory.mktemp(libc.name)
    command = [libc.emulator, "-L", libc.root(folder), libc.compiled(WORKLOAD, folder)]
    codes = (ExitCode.OK, ExitCode.INCOMPLETE) if libc.is_bionic else (ExitCode.OK,)
    yield Measured(
        libc, run("preload", folder, "--", *command, environment=libc.environment(folder), codes=codes)
    )


def test_it_is_measured_as_what_it_is(measured: Measured) -> None:
    assert measured.run.report["target"]["arch"] == measured.libc.arch
    assert not any(measured.run.totals["lost"].values()), measured.run.totals["lost"]


def test_totals_are_the_program_s_own(measured: Measured) -> None:
    held_bytes, held_blocks, allocated_bytes, allocated_blocks, _ = measured.own_count
    assert measured.run.amounts() == (held_bytes, held_blocks)
    runtime = measured.run.sites("runtime")
    totals = measured.run.totals
    more_bytes = totals["alloc_space"] - sum(site["alloc_space"] for site in runtime) - allocated_bytes
    more_blocks = totals["alloc_objects"] - sum(site["alloc_objects"] for site in runtime) - allocated_blocks
    if measured.libc.has_exact_totals:
        assert (more_bytes, more_blocks) == (0, 0)
    else:
        assert 0 < more_blocks <= LIBC_S_OWN_BLOCKS and 0 < more_bytes <= LIBC_S_OWN_BYTES


def test_stacks_name_every_caller(measured: Measured) -> None:
    found = {}
    for site in measured.run.sites():
        names = functions(site)
        last = next(i for i, name in enumerate(names) if name in ("main", "worker"))
        found[site["inuse_space"] // site["inuse_objects"], site["inuse_objects"]] = names[: last + 1]
    assert found == HELD


def test_stacks_reach_the_outermost_frame(measured: Measured) -> None:
    """If the emulator hides that libc's code is code (Android 10's), only its first frame is known, and the report says so."""
    ends = {functions(site)[-1]: site["end"] for site in measured.run.sites()}
    if measured.libc.is_bionic and "NO_MAPPING" in ends.values():
        assert ends == {"__libc_init": "NO_MAPPING", "__pthread_start(void*)": "NO_MAPPING"}
        assert measured.run.report["measurement"] == "incomplete"
    elif measured.libc.is_bionic:
        assert ends == {"_start": "ROOT", "__start_thread": "ROOT"}
    else:
        assert set(ends.values()) == {"ROOT"}


def test_the_target_finds_the_user_s_environment(measured: Measured) -> None:
    assert measured.own_count[-1] == 0
