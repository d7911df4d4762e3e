"""The modules of a program that recorded itself, as its recording lists them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memleak_android.host.stacks.modules import LocalFiles, ModuleFile, ModuleFiles, reopen
from memleak_android.unwind.maps import Mapping

_ADDRESS_END = 2**64


class LinkedModules(ModuleFiles):
    """Files from the MODULES block: objects with path, start, bias and build_id.

    A file that is missing or has changed has no names of its own, but vaddrs and a build-id, by which --symbols finds it.
    copies: other paths of files with a build-id.
    """

    def __init__(self, recorded: Sequence[dict[str, Any]], copies: Callable[[str], Iterable[Path]]) -> None:
        super().__init__(LocalFiles(is_running=False))
        self._copies = copies
        self._recorded = sorted(
            (row for row in recorded if _is_sound(row)), key=lambda row: int(row["start"])
        )
        self._starts = [int(row["start"]) for row in self._recorded]
        self._opened: dict[int, int] = {}

    def number(self, pid: int, mapping: Mapping) -> int | None:
        """The index in `files` of the module that a mapping is part of; None for memory without a file."""
        index = bisect_right(self._starts, mapping.start) - 1
        while index >= 0 and self._recorded[index]["path"] != mapping.path:
            index -= 1
        if index < 0:
            return None
        if index not in self._opened:
            self._opened[index] = len(self.files)
            self.files.append(self._open(self._recorded[index]))
        return self._opened[index]

    def _open(self, recorded: dict[str, Any]) -> ModuleFile:
        file = reopen(recorded["path"], recorded["build_id"], self._copies(recorded["build_id"]))
        return replace(file, bias=recorded["bias"])


def _is_sound(recorded: dict[str, Any]) -> bool:
    numbers = [recorded.get("start"), recorded.get("bias")]
    return all(type(number) is int and 0 <= number < _ADDRESS_END for number in numbers) and all(
        isinstance(recorded.get(name), str) for name in ("path", "build_id")
    )
