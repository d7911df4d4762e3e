"""A process's memory by its mappings, and how much of it is tracked."""

from collections.abc import Iterator, Sequence

from memleak_android.host.profile.profile import OF_HEAP, MemoryUse
from memleak_android.host.reports.text.messages import MEMORY_PARTS
from memleak_android.host.reports.units import clock, size_text

_UNTOUCHED_SHARE_MIN = 0.2


def memory_lines(memory: Sequence[MemoryUse]) -> Iterator[str]:
    """A table of the first process, a line for each of the others."""
    for use in memory[:1]:
        yield from _table(use)
    for use in memory[1:]:
        yield f"memory of pid {use.pid} at {clock(use.elapsed_ns)}: {memory_line(use)}"


def untouched_notes(memory: Sequence[MemoryUse]) -> list[str]:
    """For a process whose resident memory is much less than what it holds: the system's tools show the former."""
    return [
        f"pid {use.pid}: of {size_text(use.tracked)} held, {size_text(use.untouched)} or more is not resident"
        " (never touched, or swapped out): RSS is less"
        for use in memory
        if use.untouched > _UNTOUCHED_SHARE_MIN * use.tracked
    ]


def _table(memory: MemoryUse) -> Iterator[str]:
    rss = sum(resident for _, resident, _ in memory.parts)
    pss = sum(proportional for _, _, proportional in memory.parts)
    yield f"memory of pid {memory.pid} at {clock(memory.elapsed_ns)}      resident   proportional"
    for name, resident, proportional in memory.parts:
        yield f"  {resident:>22,} {proportional:>14,}  {MEMORY_PARTS.get(name, name)}"
    yield f"  {rss:>22,} {pss:>14,}  in all"
    yield f"  {memory.tracked:>22,}                 of these tracked as allocations"
    if memory.untouched:
        yield f"  {memory.untouched:>22,}                 of those never touched, or swapped out, at least"
    elif memory.caches is not None:
        yield f"  {memory.caches:>22,}                 the allocator's beside them, an estimate: free memory, headers, older blocks"
    else:
        yield f"  {memory.heap - memory.tracked:>22,}                 neither: caches and headers, older blocks, stacks, mmap"


def memory_line(memory: MemoryUse) -> str:
    """`of 9,000 resident bytes: 5,000 tracked, 1,000 the allocator's beside them, 3,000 files: code and data`."""
    rss = sum(resident for _, resident, _ in memory.parts)
    parts = [f"{memory.tracked:,} tracked"]
    if memory.untouched:
        parts.append(f"{memory.untouched:,} of those never touched")
    elif memory.caches is not None:
        parts.append(f"{memory.caches:,} the allocator's beside them")
    of_tracked = OF_HEAP if memory.caches is None else ("allocator",)
    others = [(name, resident) for name, resident, _ in memory.parts if name not in of_tracked and resident]
    parts += [f"{resident:,} {MEMORY_PARTS.get(name, name).partition(':')[0]}" for name, resident in others]
    return f"of {rss:,} resident bytes: {', '.join(parts)}"
