"""A running process is attached to by its modules' slots or its allocator's code, measured, and left as it was."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.wire.blocks import BlockKind, StopMoment, Stopped
from tests.support.attached_session import (
    attach,
    contained,
    contents_of,
    layout_of,
    leak,
    loaded,
    start_agent,
    started,
    workload,
    workload_root,
)
from tests.support.attaching import children_of, descendant, until
from tests.support.containers import in_container
from tests.support.gcc import compiled, gcc
from tests.support.inline_session import WAYS, own_allocator_program, plan

pytestmark = pytest.mark.compares_code


def slow_entries(folder: Path) -> Path:
    """Its functions begin with slow instructions, in which the threads mostly are when they are stopped."""
    wrapped = folder / "slow_entries.c"
    wrapped.write_text(
        "".join(
            f'__asm__(".globl {name}\\n.hidden {name}\\n.type {name}, @function\\n{name}:\\n'
            f'mfence\\nmfence\\nmfence\\njmp own_{name}\\n.size {name}, . - {name}\\n.skip 64, 0x90\\n");\n'
            for name in ("malloc", "free")
        )
    )
    return own_allocator_program("slow_entries", str(wrapped), "-DOWN_malloc")


def two_libcs(folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A library that dlmopen() has loaded into a namespace of its own brings a libc along. It may be mapped lower."""
    gcc("-shared", "-Wl,--no-as-needed", "-o", folder / "other.so", "-x", "c", "/dev/null")
    return started(workload(), "namespace", "2", folder / "other.so")


TARGETS: dict[str, Callable[[Path], AbstractContextManager[subprocess.Popen[bytes]]]] = {
    "own allocator": lambda _: loaded(3, own_allocator_program("own_allocator")),
    "slow entries": lambda folder: loaded(4, slow_entries(folder)),
    "two libcs": two_libcs,
    "shared libc": lambda _: loaded(2),
}
CASES = [("plt", "shared libc"), ("plt", "two libcs")]
CASES += [("inline", target) for target in TARGETS if target != "shared libc"]


@pytest.mark.parametrize(("way", "target"), CASES)
def test_what_is_allocated_from_then_on_is_counted_and_the_process_is_left_as_it_was(
    way: str, target: str, tmp_path: Path
) -> None:
    with TARGETS[target](tmp_path) as process:
        leak(process)  # before: invisible
        before, layout = contents_of(process.pid), layout_of(process.pid)
        for _ in range(10 if target == "slow entries" else 3):
            meanwhile: list[dict[str, str]] = []
            look = lambda seen=meanwhile: (leak(process), seen.append(contents_of(process.pid)))
            found = WAYS[way](process.pid, look)
            assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23), found
            assert meanwhile and meanwhile != [before]
            assert contents_of(process.pid) == before
            assert layout_of(process.pid) == layout
        leak(process)


def test_every_stop_is_reported() -> None:
    with loaded(3) as process:
        began_ns, meanwhile = time.monotonic_ns(), []
        found = attach(process.pid, lambda: meanwhile.append(time.monotonic_ns()))
        ended_ns = time.monotonic_ns()
    rows = np.concatenate(found.stops)
    assert (rows["pid"] == process.pid).all()
    ends_ns = rows["timestamp_ns"].astype(np.int64)
    begins_ns = ends_ns - rows["duration_ns"].astype(np.int64)
    assert (begins_ns < ends_ns).all()
    for moment, first_ns, last_ns in (
        (StopMoment.ATTACH, began_ns, meanwhile[0]),
        (StopMoment.DETACH, meanwhile[0], ended_ns),
    ):
        of_moment = rows["moment"] == moment
        assert begins_ns[of_moment].min() > first_ns and ends_ns[of_moment].max() < last_ns
        together, caller = (of_moment & (rows["stopped"] == each) for each in Stopped)
        assert (rows["n_threads"][together] == 4).all() and caller.sum() == 1
        # the one that calls was asked to stop with the others, and went on after them
        assert begins_ns[caller][0] < ends_ns[together][-1] < ends_ns[caller][0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("victims", ["agent", "keeper", "agent and keeper"])
def test_hooks_are_removed_after_a_kill(victims: str, way: str) -> None:
    with TARGETS["shared libc" if way == "plt" else "own allocator"](Path()) as process:
        before = contents_of(process.pid)
        hook_lines = plan(process.pid).lines if way == "inline" else ()
        channel, session = start_agent(process.pid, way, hook_lines)
        for block in session.blocks():
            if block.kind == BlockKind.STOPS:
                break
        assert contents_of(process.pid) != before
        (keeper,) = children_of(channel.pid)
        for name, pid in (("keeper", keeper), ("agent", channel.pid)):
            if name in victims:
                os.kill(pid, signal.SIGKILL)
        if victims == "keeper":
            os.kill(channel.pid, signal.SIGTERM)
        if victims != "agent and keeper":  # else the next session does it
            assert until(lambda: contents_of(process.pid) == before), victims
        leak(process)
        session.close()
        found = WAYS[way](process.pid, lambda: leak(process))
        assert (found.error, found.sizes[5003]) == ("", 23)
        assert contents_of(process.pid) == before


def test_a_target_that_ends_ends_the_session() -> None:
    with loaded(2) as process:
        _, session = start_agent(process.pid)
        kinds = []
        for block in session.blocks():
            kinds.append(block.kind)
            if block.kind == BlockKind.STOPS and BlockKind.STATUS in kinds:
                process.kill()
        assert kinds[-1] == BlockKind.END
        session.close()


def test_a_process_with_files_and_a_network_of_its_own(tmp_path: Path) -> None:
    """As in a container: the shim gets there as a file without a name, and finds us all the same."""
    with contained(tmp_path) as (process, pid):
        for _ in range(2):
            found = attach(pid, lambda: leak(process))
            assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23), found
        assert not [
            fd for fd in os.listdir(f"/proc/{pid}/fd") if "memfd" in os.readlink(f"/proc/{pid}/fd/{fd}")
        ]


# Lends another file the name of a memory file. As root in a mount namespace of its own, a target can do so with any file.
_FALSE_MEMORY_FILE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int memfd_create(const char *name, unsigned flags)
{
    char path[128];
    int file = open("/", O_TMPFILE | O_RDWR, 0600);
    snprintf(path, sizeof(path), WITHOUT_NAME ? "/memfd:%s" : "/memfd:%s (deleted)", name);
    if (WITHOUT_NAME ? linkat(file, "", AT_FDCWD, path, AT_EMPTY_PATH) : link("/victim", path))
        return -1;
    file = open(path, O_RDONLY);
    return WITHOUT_NAME && (unlink(path) || link("/victim", "/memfd:asked")) ? -1 : file;
}
"""


@pytest.mark.parametrize("is_without_name", [False, True])
def test_a_file_that_has_a_memory_files_name_is_not_written(is_without_name: bool, tmp_path: Path) -> None:
    """The target says which of its descriptors is for the shim; root's agent would write whatever that leads to.

    is_without_name: as memory files are, by O_TMPFILE.
    """
    root = workload_root(tmp_path)
    (tmp_path / "false.c").write_text(_FALSE_MEMORY_FILE)
    flags = ("-shared", "-fPIC", f"-DWITHOUT_NAME={int(is_without_name)}")
    compiled(root / "false.so", tmp_path / "false.c", *flags)
    (root / "proc" / "version").touch()
    (root / "victim").touch()
    words = in_container(root, "/attach_workload", "load", "2")
    with started(*words, env={**os.environ, "LD_PRELOAD": "/false.so"}) as process:
        pid = descendant(process.pid, "attach_workload")
        error = attach(pid).error
    assert list(root.glob("memfd:*")), "the target was not asked for a memory file"
    assert error.startswith(f"the shim could not be written for process {pid}: Operation not permitted"), (
        error
    )
    assert (root / "victim").read_bytes() == b""


# 4,000 more objects with 1,048,575 symbols each, all in the same pages.
_FALSE_LIBRARIES = """
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
extern struct r_debug _r_debug;
static struct link_map objects[4000];
int main(void)
{
    char *pages = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    static Elf64_Word hash[2] = { 1, (1 << 20) - 1 };
    Elf64_Dyn dynamic[] = { { DT_SYMTAB, { (size_t)pages } }, { DT_STRTAB, { (size_t)pages } },
                            { DT_STRSZ, { 64 << 20 } }, { DT_HASH, { (size_t)hash } }, { DT_NULL } };
    struct link_map *last = _r_debug.r_map;
    while (last->l_next)
        last = last->l_next;
    for (int i = 0; i < 4000; i++) {
        objects[i] = (struct link_map){ .l_name = "", .l_ld = dynamic };
        last = last->l_next = &objects[i];
    }
    puts("ready");
    fflush(stdout);
    return read(0, pages, 1) < 0;
}
"""


def test_lists_of_libraries_that_are_made_to_be_endless_are_refused(tmp_path: Path) -> None:
    """Each lookup of a function in them kept root's agent busy for minutes."""
    (tmp_path / "false.c").write_text(_FALSE_LIBRARIES)
    program = compiled(tmp_path / "false", tmp_path / "false.c")
    with started(program) as process:
        text = f"the lists of libraries of process {process.pid} are too large to be read (use --tracer bpf)"
        assert attach(process.pid).error == text


def test_a_process_with_files_of_its_own_and_no_proc_is_refused(tmp_path: Path) -> None:
    with contained(tmp_path, has_proc=False) as (_, pid):
        error = attach(pid).error
        assert error.startswith(f"process {pid} sees other files than the agent, and no /proc: ")
