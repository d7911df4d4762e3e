"""Mounted file systems whose server is a process (FUSE, mount(8)): whether a path may lead to one, and whose it is.

And those whose files are memory, which need no server.
"""

import os
import re
from dataclasses import dataclass

_OF_PROCESS = re.compile(r"/proc/(\d+|self)/")
_SERVED = re.compile(r"^(\d+) .* - fuse(?!ctl)\S* \S+ (\S+)$", re.MULTILINE)
_MEMORY = re.compile(r"^(\d+) .* - tmpfs ", re.MULTILINE)
_USER = re.compile(r"\buser_id=(\d+)\b")


@dataclass(frozen=True, slots=True)
class ServedMount:
    """mount_id: as in /proc/PID/fdinfo. user: who mounted it, in our user namespace; None = unknown."""

    mount_id: int
    user: int | None

    @property
    def is_trusted(self) -> bool:
        """Whether its server is ours or root's. Another user's may cease to answer on purpose."""
        return self.user in (0, os.geteuid())


def served_mounts(path: str | os.PathLike[str]) -> list[ServedMount]:
    """Those of the mount namespace in which the path is resolved. Reading the list waits for none of their servers."""
    process = _OF_PROCESS.match(os.fsdecode(path))
    found = dict.fromkeys(_listed("self") + (_listed(process[1]) if process else []))
    return list(found)


def memory_mounts(pid: int) -> set[int]:
    """Ids of those of tmpfs in the process's mount namespace."""
    return {int(mount) for mount in _MEMORY.findall(_table(str(pid)))}


def _listed(process: str) -> list[ServedMount]:
    return [ServedMount(int(found[1]), _user(found[2])) for found in _SERVED.finditer(_table(process))]


def _table(process: str) -> str:
    try:
        with open(
            f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n"
        ) as file:
            return file.read()
    except OSError:
        return ""


def _user(options: str) -> int | None:
    found = _USER.search(options)
    return int(found[1]) if found else None


def mount_of(descriptor: int) -> int | None:
    """The mount of an open file, of which nothing is asked. None: without /proc."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("mnt_id:")), None)
    except OSError:
        return None
