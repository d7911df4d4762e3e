"""Offsets of entry probes: a function's first instruction, or a later one that costs less."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.tracers.functions.selection import FoundFunction
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.placement import (
    FUNCTION_BYTES_MAX,
    SINGLE_STEPPED,
    jumps_from_outside,
    place_entry,
)

_FIRST_BYTES = 16  # the longest instruction


def entry_offsets(elf: ElfFile, functions: Sequence[FoundFunction]) -> list[tuple[int, str]]:
    """(file offset, cost) of each function. Only functions with an expensive first instruction are decoded further."""
    arch = PROBED_ARCHES[elf.machine]
    found: dict[int, tuple[int, str]] = {}
    by_text: dict[tuple[int, int], list[FoundFunction]] = defaultdict(list)
    for function in functions:
        text = elf.text_segment(function.file_offset)
        first = next(iter(arch.decode(elf.bytes_from(function.file_offset, _FIRST_BYTES), 0)), None)
        if text is None or (first is not None and arch.is_cheap(first)) or not function.size:
            cost = arch.cheap if first is not None and arch.is_cheap(first) else SINGLE_STEPPED
            found[function.file_offset] = function.file_offset, cost
        else:
            by_text[text.file_offset, text.file_bytes].append(function)
    for (low, size), expensive in by_text.items():
        ranges = [
            (each.file_offset - low, min(each.file_offset + each.size - low, size)) for each in expensive
        ]
        jumps = jumps_from_outside(arch, elf.view(low, size), ranges)
        for function, (start, end), jumped_to in zip(expensive, ranges, jumps, strict=True):
            code = elf.slice(low + start, min(end - start, FUNCTION_BYTES_MAX + 1))
            placement = place_entry(arch, code, frozenset(arch.arguments), jumped_to=jumped_to)
            found[function.file_offset] = function.file_offset + placement.offset, placement.cost
    return [found[function.file_offset] for function in functions]
