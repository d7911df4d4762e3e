"""Names of kernel addresses from /proc/kallsyms, if the running kernel is the recorded one."""

from __future__ import annotations

import platform
import re
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.perf_data.container import PerfData
from memleak_android.host.perf_data.sampled_stacks import KERNEL
from memleak_android.host.symbols.symbolizer import NAMELESS, ResolvedFrame

_FUNCTIONS = "tTwW"
_TRANSIENT = ["[bpf]"]  # BPF programs come and go: the address may have held another one


class KernelSymbols:
    """Names kernel addresses if the recording has the running kernel's build-id. Without a recorded build-id, host and
    release must match, and the recording must be younger than the boot.
    """

    def __init__(self, recording: PerfData, root: Path = Path("/")) -> None:
        self._recording = recording
        self._root = root

    def resolve(self, address: int) -> tuple[ResolvedFrame, ...]:
        starts, names = self._table
        at = int(np.searchsorted(starts, np.uint64(address), "right")) - 1
        if at < 0:
            return NAMELESS
        if not names[at]:
            return NAMELESS
        return (ResolvedFrame(names[at], address - int(starts[at]), None, None, False),)

    @cached_property
    def _table(self) -> tuple[NDArray[np.uint64], list[str]]:
        """Ascending starts, and names; empty if addresses are hidden (sysctl kernel.kptr_restrict)."""
        lines = self._lines() if self._is_running_kernel() else []
        rows = [line.split(maxsplit=3) for line in lines]
        functions = sorted(
            (int(row[0], 16), "" if row[3:] == _TRANSIENT else row[2])
            for row in rows
            if len(row) > 2 and row[1] in _FUNCTIONS
        )
        if not functions or not functions[-1][0]:
            return np.empty(0, np.uint64), []
        return np.array([start for start, _ in functions], np.uint64), [name for _, name in functions]

    def _lines(self) -> list[str]:
        try:
            return (self._root / "proc/kallsyms").read_text().splitlines()
        except OSError:
            return []

    def _is_running_kernel(self) -> bool:
        recorded = bytes.fromhex(self._recording.build_ids.get(KERNEL, ""))
        try:
            if any(recorded):
                return recorded in (self._root / "sys/kernel/notes").read_bytes()
            booted = re.search(r"^btime (\d+)$", (self._root / "proc/stat").read_text(), re.MULTILINE)
            is_since = booted is not None and self._recording.path.stat().st_mtime >= int(booted[1])
        except OSError:
            return False
        here = (platform.node(), platform.release())
        return is_since and (self._recording.host, self._recording.release) == here
