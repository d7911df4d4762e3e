"""Probes placed by the kernel in this machine's libc: each function is called a prime number of times.

Counting uprobes (perf_event_open(2), PMU `uprobe`) and no tracer of ours: what is tested is the offset alone.
"""

import ctypes
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memleak_android.host.tracers.agent.session_options import AllocatorChoice, Probe
from memleak_android.host.tracers.probes.allocator import plan_probes
from tests.support.gcc import gcc

pytestmark = pytest.mark.bpf

_PERF_EVENT_OPEN = 298  # x86_64
_PERF_ATTR_BYTES = 112  # PERF_ATTR_SIZE_VER5
_PERF_FLAG_FD_CLOEXEC = 8

PROGRAM = r"""
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

#include <unistd.h>
static void *volatile block;
static void *volatile null;
#define TIMES(n) for (int i = 0; i < n; i++)
int main(void)
{
	char byte;
	void *p, *kept = malloc(8);
	if (write(1, "r", 1) != 1 || read(0, &byte, 1) != 1)
		return 1;
	TIMES(101) block = malloc(i);
	TIMES(7) block = malloc((size_t)PTRDIFF_MAX + 1);
	TIMES(103) block = calloc(i, 3);
	TIMES(5) block = calloc(SIZE_MAX, 3);
	TIMES(107) kept = realloc(kept, 16 + 8 * i);
	TIMES(109) kept = reallocarray(kept, 3, 1 + i);
	TIMES(3) block = reallocarray(kept, SIZE_MAX, 2);
	TIMES(113) posix_memalign(&p, 64, 10);
	TIMES(2) posix_memalign(&p, 3, 10);
	TIMES(127) block = memalign(64, 10);
	TIMES(131) block = aligned_alloc(64, 10);
	TIMES(137) block = valloc(10);
	TIMES(139) block = pvalloc(10);
	TIMES(149) { block = malloc(24); free(block); }
	TIMES(151) free(null);
	_exit(0);
}
"""
EXPECTED = {
    "malloc": 101 + 7 + 149,
    "calloc": 103 + 5,
    "realloc": 107 + 109,  # reallocarray comes by realloc, but not when the product overflows
    "reallocarray": 109 + 3,
    "posix_memalign": 113 + 2,
    "memalign": 127 + 131,  # one address with aligned_alloc
    "valloc": 137,
    "pvalloc": 139,
    "free": 149,  # free(NULL) is not seen
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.libc_ver()[0] != "glibc" or platform.machine() != "x86_64":
        pytest.skip("the expected counts are those of glibc on x86_64")
    folder = tmp_path_factory.mktemp("counts")
    (folder / "calls.c").write_text(PROGRAM)
    gcc("-O1", "-fno-builtin", "-w", "-o", folder / "calls", folder / "calls.c")
    return folder / "calls"


def open_counter(path: str, offset: int, pid: int, *, at_return: bool, from_exec: bool = False) -> int:
    """File descriptor whose 8 bytes are the number of hits, from now or from the next exec on."""
    pmu = Path("/sys/bus/event_source/devices/uprobe")
    if not pmu.exists():
        pytest.skip("this kernel has no uprobe PMU")
    name = ctypes.create_string_buffer(os.fsencode(path))
    attributes = bytearray(_PERF_ATTR_BYTES)
    struct.pack_into("<IIQ", attributes, 0, int((pmu / "type").read_text()), len(attributes), int(at_return))
    struct.pack_into("<QQ", attributes, 56, ctypes.addressof(name), offset)  # config1, config2
    if from_exec:
        struct.pack_into("<Q", attributes, 40, 1 << 0 | 1 << 12)  # disabled, enable_on_exec
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    fd = int(libc.syscall(_PERF_EVENT_OPEN, buffer, pid, -1, -1, _PERF_FLAG_FD_CLOEXEC))
    if fd < 0:
        error = ctypes.get_errno()
        if error in (1, 13):
            pytest.skip(f"perf_event_open: {os.strerror(error)}")
        raise OSError(error, os.strerror(error), f"{path}+{offset:#x}")
    return fd


@contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, waiting before its first call that counts."""
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.read(1) == b"r"  # its linker has called malloc, too
        yield process
    finally:
        process.kill()
        process.wait()


def count(program: Path, probes: list[Probe], *, moved: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Hits by function: at the entry, at the return."""
    with running(program) as process:
        entries, returns = {}, {}
        for probe in probes:
            offset = probe.entry_offset if moved else probe.function_offset
            entries[probe.function] = open_counter(probe.path, offset, process.pid, at_return=False)
            if probe.return_offset is not None:
                returns[probe.function] = open_counter(probe.path, offset, process.pid, at_return=True)
        process.communicate(b"x", timeout=60)
        assert process.returncode == 0
    return read_counters(entries), read_counters(returns)


def read_counters(counters: dict[str, int]) -> dict[str, int]:
    found = {}
    for function, fd in counters.items():
        found[function] = int.from_bytes(os.read(fd, 8), "little")
        os.close(fd)
    return found


def own_libc(pid: int) -> str:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("/libc.so.6"):
            return line.split()[-1]
    pytest.skip("this program has no libc.so.6 mapped")


@pytest.mark.parametrize("moved", [False, True], ids=["at the function's start", "at the chosen instruction"])
def test_every_call_is_counted_once(program: Path, moved: bool) -> None:
    probes, _ = plan_probes(own_libc(os.getpid()), AllocatorChoice())
    if moved:
        assert any(probe.entry_offset != probe.function_offset for probe in probes)
    entries, returns = count(program, probes, moved=moved)
    expected = dict(EXPECTED)
    free = next(probe for probe in probes if probe.function == "free")
    if not moved or free.entry_offset == free.function_offset:
        expected["free"] += 151
    assert {name: entries[name] for name in expected} == expected
    # every entry has its return, also with the return probe at the moved offset
    assert returns == {name: hits for name, hits in entries.items() if name in returns}


SQL = "create table t(x); insert into t values(randomblob(9999)); select count(*) from t;"
SQLITE = ("sqlite3", ":memory:", SQL)
RUNS = {
    "libc.so.6": ("python3", "-c", "import json; json.loads('[' + '{\"a\": [1, 2]},' * 100 + '1]')"),
    **dict.fromkeys(("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"), SQLITE),
}


@pytest.mark.parametrize("allocator", RUNS)
def test_agent_and_host_see_the_same(allocator: str) -> None:
    """One run with counters at the function's start and at the chosen instruction, in allocators that others built."""
    library, command = Path("/usr/lib/x86_64-linux-gnu") / allocator, RUNS[allocator]
    if not library.exists() or shutil.which(command[0]) is None:
        pytest.skip(f"{library} or {command[0]} is not installed")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/dev/null", "PYTHONMALLOC": "malloc"}
    if allocator != "libc.so.6":
        environment["LD_PRELOAD"] = str(library)
    probes, _ = plan_probes(str(library), AllocatorChoice())
    moved = [probe for probe in probes if probe.entry_offset != probe.function_offset]
    launcher = subprocess.Popen(
        ["/bin/sh", "-c", 'read x; exec "$@"', "sh", *command],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    at_start, at_entry, at_return = {}, {}, {}
    try:
        for i, probe in enumerate(moved):
            name = f"{probe.function} {i}"
            pid, path = launcher.pid, probe.path
            at_start[name] = open_counter(path, probe.function_offset, pid, at_return=False, from_exec=True)
            at_entry[name] = open_counter(path, probe.entry_offset, pid, at_return=False, from_exec=True)
            if probe.return_offset is not None:
                at_return[name] = open_counter(path, probe.return_offset, pid, at_return=True, from_exec=True)
        launcher.communicate(b"x\n", timeout=60)
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode == 0
    hits, placed, returned = read_counters(at_start), read_counters(at_entry), read_counters(at_return)
    assert returned == {name: hits[name] for name in returned}
    for name, count_at_start in hits.items():
        if name.startswith("free"):
            assert placed[name] <= count_at_start  # without free(NULL)
            assert placed[name] > 0 or count_at_start < 10
        else:
            assert placed[name] == count_at_start
    assert sum(hits.values()) > 0
