"""The agent of a BPF session, with its programs and maps in the kernel for as long as a test looks at them."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local.bpf import bpf_session_lines, plan_session

PATIENCE_S = 100.0
T = TypeVar("T")


def told_of_files(pid: int, field: str) -> list[str]:
    """The values of this field of /proc/PID/fdinfo, of all files that have it."""
    found = list[str]()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            lines = entry.read_text().splitlines()
            found += [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return found


def seen_in_session(options: SessionOptions, extra: tuple[str, ...], look: Callable[[int], T]) -> T:
    """What look(the agent's pid) finds as soon as it finds something, or at the last.

    extra: configuration lines behind those of the options.
    """
    lines = [*bpf_session_lines(options, plan_session(options)), *extra, "start"]
    with subprocess.Popen(
        [find_binary("memleakd", local_arch()), "bpf"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as agent:
        assert agent.stdin is not None
        agent.stdin.write("\n".join(lines) + "\n")
        agent.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        found = look(agent.pid)
        while not found and time.monotonic() < deadline:
            time.sleep(0.05)
            found = look(agent.pid)
        agent.stdin.close()
    return found
