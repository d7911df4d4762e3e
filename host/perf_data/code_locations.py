"""Addresses of samples → code locations with names. Each distinct address of an address space is resolved once."""

import platform
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.perf_data.container import PerfData
from memleak_android.host.perf_data.files import RecordedFiles
from memleak_android.host.perf_data.sampled_stacks import KERNEL, CodeLocation
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.symbols.symbolizer import NAMELESS, ResolvedFrame, Symbolizer
from memleak_android.unwind.maps import AddressSpace

KERNEL_SPACE = -1
_FUNCTIONS = "tTwW"
_TRANSIENT = ["[bpf]"]  # BPF programs come and go: the address may have held another one


class CodeLocations:
    """Numbers the code locations; `known` has them by number."""

    def __init__(self, spaces: Sequence[AddressSpace], files: RecordedFiles, symbolizer: Symbolizer) -> None:
        self.known: list[CodeLocation] = []
        self._spaces = spaces
        self._files = files
        self._symbolizer = symbolizer
        self._kernel = KernelSymbols(files.recording)
        self._numbers: dict[tuple[int, int], int] = {}

    def numbers(self, space: NDArray[np.int32], lookup: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The index in `known` of each address of a space (KERNEL_SPACE: the kernel's)."""
        addresses, at = np.unique(lookup, return_inverse=True)
        # One number for both: NumPy sorts pairs ten times slower.
        keys, inverse = np.unique(
            (space.astype(np.int64) - KERNEL_SPACE) * max(len(addresses), 1) + at, return_inverse=True
        )
        spaces, numbers = np.divmod(keys, max(len(addresses), 1))
        wanted = list(zip((spaces + KERNEL_SPACE).tolist(), addresses[numbers].tolist(), strict=True))
        self._resolve([key for key in wanted if key not in self._numbers])
        return np.array([self._numbers[key] for key in wanted], np.int32)[inverse]

    def _resolve(self, keys: list[tuple[int, int]]) -> None:
        by_file: dict[int, list[tuple[tuple[int, int], int]]] = {}
        for key in keys:
            space, lookup = key
            if space == KERNEL_SPACE:
                self._add(key, CodeLocation(KERNEL, "", lookup, self._kernel.resolve(lookup)))
                continue
            mapping = self._spaces[space].find(lookup)
            number = self._files.number(mapping) if mapping is not None else None
            if mapping is not None and number is not None:
                vaddr = self._files.files[number].vaddr_of(mapping, lookup)
                by_file.setdefault(number, []).append((key, vaddr))
            else:
                path = mapping.path if mapping is not None else ""
                self._add(key, CodeLocation(path, "", lookup, NAMELESS))
        for number, members in by_file.items():
            self._name(self._files.files[number], members)

    def _name(self, file: ModuleFile, members: list[tuple[tuple[int, int], int]]) -> None:
        vaddrs = np.array([vaddr for _, vaddr in members], np.uint64)
        for (key, vaddr), functions in zip(members, self._symbolizer.resolve(file, vaddrs), strict=True):
            self._add(key, CodeLocation(file.path, file.build_id, vaddr, functions))

    def _add(self, key: tuple[int, int], location: CodeLocation) -> None:
        self._numbers[key] = len(self.known)
        self.known.append(location)


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
        if at < 0 or not names[at]:
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
