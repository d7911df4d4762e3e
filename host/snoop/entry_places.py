"""Where entries are probed: at a function's first instruction, or behind it where that costs less."""

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


def entry_places(elf: ElfFile, functions: Sequence[FoundFunction]) -> list[tuple[int, str]]:
    """(offset in the file, cost) for each: only where the first instruction is dear is the rest looked at."""
    arch = PROBED_ARCHES[elf.machine]
    found: dict[int, tuple[int, str]] = {}
    by_text: dict[tuple[int, int], list[FoundFunction]] = defaultdict(list)
    for one in functions:
        text = elf.text_segment(one.file_offset)
        first = next(iter(arch.decode(elf.bytes_from(one.file_offset, _FIRST_BYTES), 0)), None)
        if text is None or (first is not None and arch.is_cheap(first)) or not one.size:
            cost = arch.cheap if first is not None and arch.is_cheap(first) else SINGLE_STEPPED
            found[one.file_offset] = one.file_offset, cost
        else:
            by_text[text.file_offset, text.file_bytes].append(one)
    for (low, size), dear in by_text.items():
        ranges = [(one.file_offset - low, min(one.file_offset + one.size - low, size)) for one in dear]
        jumps = jumps_from_outside(arch, elf.view(low, size), ranges)
        for one, (start, end), jumped_to in zip(dear, ranges, jumps, strict=True):
            code = elf.slice(low + start, min(end - start, FUNCTION_BYTES_MAX + 1))
            place = place_entry(arch, code, frozenset(arch.arguments), jumped_to=jumped_to)
            found[one.file_offset] = one.file_offset + place.offset, place.cost
    return [found[one.file_offset] for one in functions]
