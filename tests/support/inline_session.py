"""Sessions with inline hooks on programs that bring their own allocator, which other modules cannot call."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.inline.heap import InlineHooks, plan_local
from tests.support.attached_session import Attached, attach
from tests.support.gcc import gcc
from tests.support.preload_session import find_parts
from tests.support.workloads import BUILT, FLAGS, ROOT

PROBED = "differs from its file"
PROBED_S = 100
_SOURCES = ROOT / "tests" / "device" / "programs"


def own_allocator_program(name: str, *flags: str) -> Path:
    """attach_workload.c with an allocator of its own, hidden in it."""
    BUILT.mkdir(parents=True, exist_ok=True)
    output, own = BUILT / name, BUILT / f"{name}.{os.getpid()}"
    sources = [_SOURCES / "attach_workload.c", _SOURCES / "own_allocator.c"]
    gcc(*FLAGS, "-fvisibility=hidden", "-Wl,-z,now", *flags, "-o", own, *sources)
    own.rename(output)
    return output


@contextmanager
def started(program: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def plan(pid: int, **options: str) -> InlineHooks:
    agent, shim = find_parts()
    return plan_local(LocalProcess.open(pid), SessionOptions(pid=pid, **options), agent, shim)  # type: ignore[arg-type]


def attach_inline(pid: int, meanwhile: Callable[[], object] = lambda: None, **options: str) -> Attached:
    """Repeats it if uprobes are in the code: another worker's session can probe libc for all processes."""
    deadline = time.monotonic() + PROBED_S
    while True:
        found = attach(pid, meanwhile, "inline", plan(pid, **options).lines)
        if PROBED not in found.error or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
