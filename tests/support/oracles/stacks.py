"""Stacks of a report and of valgrind in one form, so that they can be compared frame by frame."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.oracles import valgrind

Stack = tuple[tuple[str, int], ...]
"""(object, vaddr of the call's return address) of each frame outside the allocator, innermost first."""

ALLOCATOR = {
    *("malloc", "calloc", "realloc", "reallocarray", "free", "posix_memalign", "memalign", "aligned_alloc"),
    *("valloc", "pvalloc", "__libc_memalign", "operator new", "operator new[]"),
}
THREAD_START = {"clone", "__clone", "clone3", "__clone3"}


def stacks_of_report(report: Mapping[str, Any]) -> dict[Stack, tuple[int, int]]:
    """Bytes and blocks of each stack of a report.json."""
    amounts: dict[Stack, tuple[int, int]] = {}
    for site in report["sites"]:
        frames = [frame for frame in site["frames"] if not frame["inlined"]]
        rest = _callers([frame["function"] for frame in frames])
        stack = tuple(
            (_real(frame["module"]), int(frame["vaddr"], 16))
            for frame in frames[rest:]
            if frame["function"] not in THREAD_START
        )
        _add(amounts, stack, site["inuse_space"], site["inuse_objects"])
    return amounts


def stacks_of_valgrind(
    records: Sequence[valgrind.Record], report: Mapping[str, Any]
) -> dict[Stack, tuple[int, int]]:
    """The same of valgrind's records; the report only has the objects' load addresses."""
    vaddrs: dict[str, set[int]] = {}
    for stack in stacks_of_report(report):
        for name, vaddr in stack:
            vaddrs.setdefault(name, set()).add(vaddr)
    records = [
        valgrind.Record(
            record.bytes,
            record.blocks,
            tuple(valgrind.Frame(f.ip, _real(f.object), f.function) for f in record.frames),
        )
        for record in records
    ]
    bases = valgrind.bases(records, vaddrs)
    amounts: dict[Stack, tuple[int, int]] = {}
    for record in records:
        rest = _callers([frame.function for frame in record.frames])
        # Past the outermost frame valgrind goes on into the words of argv.
        known = itertools.takewhile(lambda frame: frame.object, record.frames[rest:])
        stack = tuple(
            (f.object, f.ip + 1 - bases.get(f.object, 0)) for f in known if f.function not in THREAD_START
        )
        _add(amounts, stack, record.bytes, record.blocks)
    return amounts


def _callers(functions: Sequence[str]) -> int:
    """How many of the innermost frames are the allocator's: its entries call each other."""
    inside = (i for i, name in enumerate(functions) if name.split("(")[0] not in ALLOCATOR)
    return next(inside, len(functions))


def _add(amounts: dict[Stack, tuple[int, int]], stack: Stack, space: int, objects: int) -> None:
    before = amounts.get(stack, (0, 0))
    amounts[stack] = before[0] + space, before[1] + objects


def _real(path: str) -> str:
    return os.path.realpath(path) if path else ""
