"""Kernel memory of a program, counted by us and by bpftrace, which share events but no code."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.kernel.conftest import need_kernel
from tests.sessions.kernel.test_memory import kernel_part, names
from tests.support.workloads import PROGRAM

pytestmark = [pytest.mark.bpf, pytest.mark.proof]

PIPES = 50
SLAB_BLOCK_MAX = 8192  # KMALLOC_MAX_CACHE_SIZE: larger ones are pages
SECONDS = 120.0
# tracefs in a namespace of its own: here it need not be mounted.
MOUNTED = 'mount -t tracefs none /sys/kernel/tracing && mount -t debugfs none /sys/kernel/debug; exec bpftrace -e "$0"'
SCRIPT = """
tracepoint:kmem:kmalloc* /pid == {own}/ {{ @saw_kmalloc = 1; }}
tracepoint:kmem:kmem_cache_alloc* /pid == {own}/ {{ @saw_cache = 1; }}
tracepoint:kmem:mm_page_alloc /pid == {own}/ {{ @saw_page = 1; }}
interval:ms:100 /@saw_kmalloc && @saw_cache && @saw_page/ {{ printf("ready\\n"); }}
tracepoint:kmem:kmalloc* /pid == {pid}/ {{ @kmalloc[kstack(20), args->bytes_alloc] = count(); }}
tracepoint:kmem:kmem_cache_alloc* /pid == {pid}/ {{ @kmem_cache_alloc[kstack(20), args->bytes_alloc] = count(); }}
tracepoint:kmem:mm_page_alloc /pid == {pid}/ {{ @mm_page_alloc[kstack(20), 4096 << args->order] = count(); }}
"""
# Memory held until a pipe is closed, by the allocating function: frees do not matter. The pipe of the program's output
# keeps a page too, for the next write (tmp_page of struct pipe_inode_info).
KEPT = {
    "kmalloc": "alloc_pipe_info",
    "kmem_cache_alloc": "create_pipe_files",
    "mm_page_alloc": "pipe_write",
}


@contextmanager
def bpftrace(pid: int) -> Iterator[subprocess.Popen[str]]:
    """Attached, which it says when it has seen each event of ours, and ended with the block."""
    if shutil.which("bpftrace") is None:
        pytest.skip("bpftrace is not installed")
    argv = ["unshare", "--mount", "sh", "-c", MOUNTED, SCRIPT.format(pid=pid, own=os.getpid())]
    environment = dict(os.environ, BPFTRACE_MAP_KEYS_MAX="100000")
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as oracle:
        try:
            assert oracle.stdout is not None
            deadline = time.monotonic() + SECONDS
            while not (
                select.select([oracle.stdout], [], [], 0.1)[0] and "ready" in oracle.stdout.readline()
            ):
                assert oracle.poll() is None and time.monotonic() < deadline, "bpftrace did not begin"
                pass_pipe()
            yield oracle
        finally:
            oracle.kill()


def pass_pipe() -> None:
    """All that is kept of a pipe, for a moment."""
    ends = os.pipe()
    os.write(ends[1], b"x")
    for end in ends:
        os.close(end)


def interrupted(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=SECONDS)[0]


def test_blocks_and_bytes_are_those_of_bpftrace(held: Path, tmp_path: Path) -> None:
    need_kernel()
    report_file = tmp_path / "report.json"
    argv = [held, "pipes", str(PIPES)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        words = ["--kernel", "--pid", str(program.pid), "--interval", "1s", "--json", str(report_file)]
        with (
            bpftrace(program.pid) as oracle,
            subprocess.Popen(
                [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as session,
        ):
            assert session.stdout is not None and session.stdout.readline()  # it runs
            print(file=program.stdin, flush=True)
            assert program.stdout.readline() == "held\n"  # and waits from here on
            interrupted(session)
            printed = interrupted(oracle)
            print(file=program.stdin, flush=True)
    report = json.loads(report_file.read_text())
    missed = report["totals"]["lost"].get("recursion", 0)  # of the target's too, at worst
    for family in KEPT:
        (objects, space), (their_objects, their_space) = ours(report, family), theirs(printed, family)
        assert their_objects >= PIPES and their_space > 0
        assert abs(objects - their_objects) <= missed, (family, printed)
        assert abs(space - their_space) <= missed * SLAB_BLOCK_MAX, (family, printed)


def ours(report: dict[str, Any], family: str) -> tuple[int, int]:
    """Blocks and bytes."""
    sites = [one for one in report["sites"] if names(one)[0] == family and is_kept(family, kernel_part(one))]
    return sum(one["inuse_objects"] for one in sites), sum(one["inuse_space"] for one in sites)


def theirs(printed: str, family: str) -> tuple[int, int]:
    rows = [
        (int(size), int(count))
        for stack, size, count in re.findall(rf"@{family}\[([^@]*?), (\d+)\]: (\d+)", printed)
        if is_kept(family, re.findall(r"^ +([\w.]+)", stack, re.MULTILINE))
    ]
    return sum(count for _, count in rows), sum(size * count for size, count in rows)


def is_kept(family: str, functions: list[str]) -> bool:
    """Pages of pipes, not those of the table for what a write was the first to touch, nor the slab allocator's own."""
    known = any(KEPT[family] in one for one in functions)
    return known and not {"handle_mm_fault", "alloc_slab_obj_exts"} & {
        one.partition(".")[0] for one in functions
    }
