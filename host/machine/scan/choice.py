"""A look into the memory of a process of this machine: by the agent, whose stop is the shorter one, or by ourselves."""

from __future__ import annotations

import numpy as np

from memleak_android.host.errors import MemleakError
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import FilesInPlace, LocalMachine
from memleak_android.host.machine.scan.local import scan_memory
from memleak_android.host.machine.scan.remote import scan_remote_memory
from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.host.wire.blocks import Rows


def scan_local_memory(pid: int, block_addresses: Addresses, held: Rows | np.void | None = None) -> MemoryScan:
    """As scan_memory(), whose errors these are.

    Ourselves where the agent may not look (Yama's ptrace_scope 1: the target is our descendant and not its own) or has no room.
    """
    machine = LocalMachine()
    try:
        files = FilesInPlace({"memleakd": find_binary("memleakd", machine.arch)})
        return scan_remote_memory(ReadingAgent(machine, lambda user: files), pid, block_addresses, held)
    except (MemleakError, OSError):
        return scan_memory(pid, block_addresses, held)
