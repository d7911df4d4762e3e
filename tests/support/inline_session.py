"""Sessions with inline hooks on programs that bring their own allocator, which other modules cannot call."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.tracers.agent.session_options import AllocatorChoice
from memleak_android.host.tracers.inline.heap import InlineHooks, local_allocator, plan_inline
from memleak_android.host.tracers.inline.target import LocalHooked
from tests.support.attached_session import Attached, attach
from tests.support.gcc import compiled
from tests.support.preload_session import find_parts
from tests.support.workloads import BUILT, FLAGS, ROOT

PROBED = "differs from its file"
PROBED_S = 100
ENTRIES = ("-fno-omit-frame-pointer", "-fno-shrink-wrap")  # a push first, which hooks keep for uprobes
_SOURCES = ROOT / "tests" / "device" / "programs"


@cache
def own_allocator_program(name: str, *flags: str) -> Path:
    """attach_workload.c with an allocator of its own, hidden in it."""
    sources = [_SOURCES / "attach_workload.c", _SOURCES / "own_allocator.c"]
    return compiled(BUILT / name, *FLAGS, *ENTRIES, "-fvisibility=hidden", "-Wl,-z,now", *flags, *sources)


def plan_local(process: LocalProcess, choice: AllocatorChoice, agent: Path, shim: Path) -> InlineHooks:
    """Plans the hooks of a local process."""
    allocator = local_allocator(process.loaded_objects(), choice)
    return plan_inline(LocalHooked(process, agent, shim), allocator, choice)


def plan(pid: int, **options: str) -> InlineHooks:
    agent, shim = find_parts()
    return plan_local(LocalProcess.open(pid), AllocatorChoice(**options), agent, shim)  # type: ignore[arg-type]


def attach_inline(pid: int, meanwhile: Callable[[], object] = lambda: None, **options: str) -> Attached:
    """Repeats it if uprobes are in the code: another worker's session can probe libc for all processes."""
    deadline = time.monotonic() + PROBED_S
    while True:
        found = attach(pid, meanwhile, "inline", plan(pid, **options).lines)
        if PROBED not in found.error or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


WAYS = {"plt": attach, "inline": attach_inline}
