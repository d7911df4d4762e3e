"""Limits of a local process's memory: those of its control groups and its own (setrlimit), each with its current use."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from memleak_android.host.machine.local.process import read_text

_CGROUPS = "/sys/fs/cgroup"
_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2^63 for none (mm/page_counter.c)

Limit = tuple[str, int, int]  # its name, the limit and what is used, in bytes


def memory_limits(pid: int) -> list[Limit]:
    """Those that there are, of a process that still runs."""
    return [*_of_groups(pid), *_of_process(pid)]


def _of_groups(pid: int) -> Iterator[Limit]:
    """cgroups(7): version 2 has a line `0::/path`, version 1 one with the controller `memory`."""
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _of_tree(_CGROUPS, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            yield from _of_tree(f"{_CGROUPS}/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _of_tree(root: str, path: str, limit_name: str, used_name: str) -> Iterator[Limit]:
    """A group's limit holds for those below it, too."""
    while ".." not in path.split("/"):  # of a group outside of our namespace
        limit, used = (_number(_text(f"{root}{path}/{name}")) for name in (limit_name, used_name))
        if limit is not None and used is not None and limit < _NO_LIMIT:
            yield f"control group {path}", limit, used
        if path in ("", "/"):
            return
        path = os.path.dirname(path)


def _of_process(pid: int) -> Iterator[Limit]:
    """setrlimit(2); the same amounts as in status (proc(5)), in KiB."""
    limits, status = _text(f"/proc/{pid}/limits"), _text(f"/proc/{pid}/status")
    for name, title, amount in (
        ("ulimit -v", "address space", "VmSize"),
        ("ulimit -d", "data size", "VmData"),
    ):
        limit = re.search(rf"^Max {title} +(\d+) ", limits, re.MULTILINE)
        used = re.search(rf"^{amount}:\s+(\d+) kB$", status, re.MULTILINE)
        if limit and used:
            yield name, int(limit[1]), int(used[1]) << 10


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _text(path: str) -> str:
    with suppress(OSError):
        return read_text(path)
    return ""
