"""Reads what the target's memory is used for, after snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memleak_android.host import heap
from memleak_android.host.analysis import target_pid
from memleak_android.host.capture import Capture
from memleak_android.host.device.remote_modules import RemoteFiles
from memleak_android.host.device.target import Target
from memleak_android.host.errors import MemleakError
from memleak_android.host.memory_use import parts_of_smaps
from memleak_android.host.peak import heap_space

SMAPS_BYTES_MAX = 64 << 20
COST_SHARE = 100  # it is read again after so many times of what it took
_USED_LINES = "^([0-9a-f]+-|Rss:|Pss:)"  # a fifth of a file that may have megabytes

ReadSmaps = Callable[[int], bytes]


def local_smaps(pid: int) -> bytes:
    """Raises OSError."""
    with Path(f"/proc/{pid}/smaps").open("rb") as file:
        return file.read(SMAPS_BYTES_MAX)


def device_smaps(target: Target, modules: RemoteFiles) -> ReadSmaps:
    """Reads as root, else as the app, where one is measured. What it returns raises DeviceError; b"" = not readable."""

    def read(pid: int) -> bytes:
        run_as = None if target.has_root else modules.run_as
        argv = ["grep", "-E", _USED_LINES, f"/proc/{pid}/smaps"]
        return target.run(argv, as_root=target.has_root, run_as=run_as, limit_bytes=SMAPS_BYTES_MAX).out

    return read


@dataclass(slots=True)
class SmapsLooks:
    """Reads the target's smaps after snapshots; the last reading goes into the session, as its "memory"."""

    capture: Capture
    read: ReadSmaps = local_smaps
    _next_s: float = 0.0

    def take(self) -> None:
        """A process that is gone, or that may not be looked at, leaves what there was."""
        snapshot, pid = self.capture.whole, target_pid(self.capture)
        begin = time.monotonic()
        if snapshot is None or not pid or begin < self._next_s:
            return
        try:
            text = self.read(pid).decode("utf-8", "replace")
        except (OSError, MemleakError):
            return
        self._next_s = time.monotonic() + (time.monotonic() - begin) * COST_SHARE
        live = snapshot.live[snapshot.live["pid"] == pid]
        if parts := parts_of_smaps(text, live["address"][heap.is_heap(live)]):
            told: dict[str, Any] = {"pid": pid, "timestamp_ns": snapshot.timestamp_ns, "by_block": True}
            self.capture.session |= {"memory": told | {"tracked": heap_space(live), "parts": parts}}
