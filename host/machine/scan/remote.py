"""A look into the memory of a device's process: the agent searches it there, and sends what may refer to a block."""

from __future__ import annotations

import time

import numpy as np

from memleak_android.host.errors import DeviceError, TargetError
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.scan.blocks import ScanReader
from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.host.wire.blocks import BlockParser, BrokenStream, Rows

_POLL_S = 0.1
_SILENCE_S = 60.0  # the stop itself, in which nothing is written
_CLOSE_S = 2.0


def scan_remote_memory(
    agent: ReadingAgent, pid: int, block_addresses: Addresses, held: Rows | np.void | None = None
) -> MemoryScan:
    """As device/memory_scan.py does it here. Raises TargetError, DeviceError."""
    reader, parser = ScanReader(agent.target.arch == "arm64"), BlockParser()
    words = ["scan", str(pid)]
    if held is not None:  # its last thread: the first may be gone, and its /proc/PID/maps is empty then
        words = ["scan", str(int(held["tid"])), f"{int(held['stack_pointer']):x}"]
    channel = agent.open(*words)
    heard = time.monotonic()
    try:
        while (piece := channel.exchange(bytearray(), _POLL_S)) is not None:
            for block in parser.feed(piece):
                reader.add(block)
            heard = time.monotonic() if piece else heard
            if time.monotonic() - heard > _SILENCE_S:
                raise DeviceError(
                    f"{agent.target.name} was silent for {_SILENCE_S:g} s while it searched memory",
                    "try again",
                )
        return reader.memory(held).scan(block_addresses)
    except BrokenStream as error:
        raise TargetError(
            f"the agent wrote something unreadable ({error.reason})", channel.last_words()
        ) from None
    finally:
        channel.close(_CLOSE_S, _CLOSE_S)
