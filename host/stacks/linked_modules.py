"""The modules of a program that recorded itself: what it told of them, wherever the recording is read."""

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
    """Files by the MODULES block of such a recording: objects of path, start, bias and build_id.

    A file that is no longer there, or another one by now, has no names of its own, but its vaddrs and build-id, by
    which --symbols finds it. copies: where files of a build-id may lie besides.
    """

    def __init__(self, told: Sequence[dict[str, Any]], copies: Callable[[str], Iterable[Path]]) -> None:
        super().__init__(LocalFiles(is_running=False))
        self._copies = copies
        self._told = sorted((one for one in told if _is_sound(one)), key=lambda one: int(one["start"]))
        self._starts = [int(one["start"]) for one in self._told]
        self._opened: dict[int, int] = {}

    def number(self, pid: int, mapping: Mapping) -> int | None:
        """The index in `files` of the module that a mapping is part of; None for memory that is no file's."""
        place = bisect_right(self._starts, mapping.start) - 1
        while place >= 0 and self._told[place]["path"] != mapping.path:
            place -= 1
        if place < 0:
            return None
        if place not in self._opened:
            self._opened[place] = len(self.files)
            self.files.append(self._open(self._told[place]))
        return self._opened[place]

    def _open(self, told: dict[str, Any]) -> ModuleFile:
        file = reopen(told["path"], told["build_id"], self._copies(told["build_id"]))
        return replace(file, bias=told["bias"])


def _is_sound(told: dict[str, Any]) -> bool:
    numbers = [told.get("start"), told.get("bias")]
    return all(type(one) is int and 0 <= one < _ADDRESS_END for one in numbers) and all(
        isinstance(told.get(name), str) for name in ("path", "build_id")
    )
