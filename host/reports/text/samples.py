"""Samples in the format of `perf script -F comm,tid,time,event,ip,sym,dso`, for programs that read it."""

from collections.abc import Sequence
from typing import TextIO

from memleak_android.host.console import printable
from memleak_android.host.perf_data.sampled_stacks import (
    CodeLocation,
    SampledStacks,
    first_joined,
    unfinished,
)

_UNNAMED = "[unknown]"


class SamplesText:
    """Entries in brackets are not frames: the reason a stack is truncated, and where frames joined from other samples begin."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []  # by location

    def write(self, stacks: SampledStacks) -> None:
        self._lines += map(_lines, stacks.locations[len(self._lines) :])
        lines, locations, bounds = self._lines, stacks.location.tolist(), stacks.offsets.tolist()
        joined = first_joined(stacks)
        for i in range(len(stacks)):
            head = _head(stacks, i)
            end = bounds[i + 1]
            seen = joined.get(i, end)
            rest = "".join([lines[location] for location in locations[bounds[i] : seen]])
            if seen < end:
                rest += _mark("joined") + "".join([lines[location] for location in locations[seen:end]])
            reason = unfinished(int(stacks.end[i]))
            self._stream.write(f"{head}\n{rest}{_mark(reason) if reason else ''}\n")

    def close(self) -> None:
        """Nothing is left to be written."""


def _mark(word: str) -> str:
    return f"\t{'':16} [{word}]\n"


def _head(stacks: SampledStacks, i: int) -> str:
    seconds, rest = divmod(int(stacks.time_ns[i]), 10**9)
    time = f"{seconds:5}.{rest // 1000:06}"
    return f"{printable(stacks.comm[i])} {stacks.tid[i]:5} {time}: {printable(stacks.event[i])}: "


def _lines(location: CodeLocation) -> str:
    """One line per function, inlined ones marked."""
    module = printable(location.module or _UNNAMED)
    return "".join(
        f"\t{location.vaddr:16x} {printable(function.function or _UNNAMED)} ({'inlined' if function.inlined else module})\n"
        for function in location.functions
    )


def names_of(locations: Sequence[CodeLocation]) -> list[str]:
    """For each location its functions, outermost first, separated by `;`."""
    return [
        ";".join(_name(location, i) for i in reversed(range(len(location.functions))))
        for location in locations
    ]


def _name(location: CodeLocation, i: int) -> str:
    name = location.functions[i].function or f"[{location.module.rpartition('/')[2] or 'unknown'}]"
    return printable(name).replace(";", ":")
