"""Memory scans by the agent, on a device or here: it searches the memory and sends words that may refer to a block."""

import time

import numpy as np

from memleak_android.host.errors import DeviceError, MemleakError, TargetError
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import FilesInPlace, LocalMachine
from memleak_android.host.machine.scan.blocks import ScanReader
from memleak_android.host.machine.scan.local import scan_memory
from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.host.wire.blocks import BlockParser, BrokenStream, Rows

_POLL_S = 0.1
_SILENCE_S = 60.0  # the agent writes nothing during the stop itself
_CLOSE_S = 2.0


def scan_by_agent(
    agent: ReadingAgent, pid: int, block_addresses: Addresses, held: Rows | np.void | None = None
) -> MemoryScan:
    """As scan_memory() of local.py. Raises TargetError, DeviceError."""
    reader, parser = ScanReader(agent.target.arch == "arm64"), BlockParser()
    words = ["scan", str(pid)]
    if held is not None:  # its last thread: the first may be gone, and its /proc/PID/maps is empty then
        words = ["scan", str(int(held["tid"])), f"{int(held['stack_pointer']):x}"]
    channel = agent.open(*words)
    last_output = time.monotonic()
    try:
        while (piece := channel.exchange(bytearray(), _POLL_S)) is not None:
            for block in parser.feed(piece):
                reader.add(block)
            last_output = time.monotonic() if piece else last_output
            if time.monotonic() - last_output > _SILENCE_S:
                raise DeviceError(
                    f"{agent.target.name} was silent for {_SILENCE_S:g} s during the memory scan", "try again"
                )
        return reader.scan(held, block_addresses)
    except BrokenStream as error:
        raise TargetError(
            f"the agent sent a malformed block ({error.reason})", channel.last_words()
        ) from None
    finally:
        channel.close(_CLOSE_S, _CLOSE_S)


def scan_local_memory(pid: int, block_addresses: Addresses, held: Rows | np.void | None = None) -> MemoryScan:
    """As scan_memory(), with the same errors.

    Python scans if the agent may not (Yama's ptrace_scope 1: the target is our descendant, not the agent's) or lacks memory.
    """
    machine = LocalMachine()
    try:
        files = FilesInPlace({"memleakd": find_binary("memleakd", machine.arch)})
        return scan_by_agent(ReadingAgent(machine, lambda user: files), pid, block_addresses, held)
    except (MemleakError, OSError):
        return scan_memory(pid, block_addresses, held)
