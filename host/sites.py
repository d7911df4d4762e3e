"""Survivors → call sites: sums per stack, frames with names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.host import heap
from memleak_android.host.modules import ModuleFile
from memleak_android.host.profile import Block, CallSite, Frame, ModuleSummary
from memleak_android.host.site_kind import site_id, site_kind
from memleak_android.host.survivors import Survivors
from memleak_android.host.symbols import NAMELESS, ResolvedFrame, Symbolizer
from memleak_android.host.wire import FIRST_REGION_FUNCTION, Function, KeyFlag, Rows
from memleak_android.unwind.trace import Method, TraceEnd

_BLOCKS_SHOWN_MAX = 100_000  # of --show-allocs, per site


@dataclass(frozen=True, slots=True)
class Sums:
    """Per stack of the table, columns of equal length. alloc_* is -1 where it is not known."""

    inuse_space: NDArray[np.int64]
    inuse_objects: NDArray[np.int64]
    variance: NDArray[np.float64]
    oldest_ns: NDArray[np.int64]
    is_approximate: NDArray[np.bool_]
    alloc_space: NDArray[np.int64]
    alloc_objects: NDArray[np.int64]


def stacks_of_blocks(survivors: Survivors) -> NDArray[np.int64]:
    """For each live block the number of its stack, heap.NONE = unattributed."""
    table = survivors.stacks
    if not len(table):
        return np.full(len(survivors.trace), heap.NONE, np.int64)
    return np.where(survivors.trace >= 0, table.stack_of_trace[survivors.trace], heap.NONE)


def sum_by_stack(survivors: Survivors, shown: NDArray[np.bool_]) -> Sums:
    """Sums of the `shown` blocks (by block)."""
    n = len(survivors.stacks.first_trace)
    live = survivors.snapshot.live
    stack = stacks_of_blocks(survivors)
    chosen = shown & (stack != heap.NONE)
    stack, live = stack[chosen], live[chosen]
    weight = heap.weights(live)
    size = live["size"].astype(np.float64)
    oldest = np.full(n, survivors.snapshot.timestamp_ns, np.int64)
    np.minimum.at(oldest, stack, live["timestamp_ns"].astype(np.int64))
    approximate = np.zeros(n, bool)
    approximate[stack[survivors.is_approximate[chosen]]] = True
    alloc_space, alloc_objects = _sum_counters(survivors, n)
    return Sums(
        _whole(np.bincount(stack, size * weight, n)),
        _whole(np.bincount(stack, weight, n)),
        np.asarray(np.bincount(stack, heap.variances(live, weight), n), np.float64),
        np.maximum(survivors.snapshot.timestamp_ns - oldest, 0),
        approximate,
        alloc_space,
        alloc_objects,
    )


def _whole(sums: NDArray[Any]) -> NDArray[np.int64]:
    """Rounded; sums of floats are exact below 2^53."""
    return np.asarray(np.rint(np.minimum(sums, 2.0**62)).astype(np.int64))


def _sum_counters(survivors: Survivors, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Allocated bytes and objects per stack, from the counters of its keys; -1 where a key is shared or uncounted."""
    table, keys = survivors.stacks, survivors.snapshot.keys
    traces = table.traces
    held = keys[np.isin(keys["key"], traces["key"])]
    counters = {(int(row["pid"]), int(row["key"])): row for row in held}
    pairs = np.empty(len(traces), [("pid", "<u8"), ("key", "<u8"), ("stack", "<i8")])
    pairs["pid"], pairs["key"], pairs["stack"] = traces["pid"], traces["key"], table.stack_of_trace
    stacks_of_key: dict[tuple[int, int], set[int]] = {}
    for pid, key, stack in np.unique(pairs).tolist():
        stacks_of_key.setdefault((pid, key), set()).add(stack)
    space, objects = np.zeros(n, np.int64), np.zeros(n, np.int64)
    unknown = np.zeros(n, bool)
    for pid_key, stacks in stacks_of_key.items():
        row = counters.get(pid_key)
        if row is None or len(stacks) > 1 or int(row["flags"]) & KeyFlag.AMBIGUOUS:
            unknown[list(stacks)] = True
        else:
            (stack,) = stacks
            space[stack] += int(row["alloc_bytes"])
            objects[stack] += int(row["alloc_objects"])
    space[unknown] = objects[unknown] = -1
    return space, objects


class SiteNamer:
    """Makes the frames of stacks, with names. Addresses are looked up together, module by module."""

    def __init__(self, survivors: Survivors, symbolizer: Symbolizer) -> None:
        self._survivors = survivors
        self._symbolizer = symbolizer
        self._names: dict[tuple[int, int], tuple[ResolvedFrame, ...]] = {}

    def look_up(self, stacks: Sequence[int]) -> None:
        table = self._survivors.stacks
        frames = [table.frames_of(table.first_trace[stack]) for stack in stacks]
        together = np.concatenate([table.frames[:0], *frames])
        vaddrs = together["vaddr"] - together["is_return"]
        for number in np.unique(together["module"]).tolist():
            if number < len(self._survivors.files):
                wanted = np.unique(vaddrs[together["module"] == number])
                chains = self._symbolizer.resolve(self._survivors.files[number], wanted)
                self._names.update(zip(((number, vaddr) for vaddr in wanted.tolist()), chains, strict=True))

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Innermost first: the allocation function, then the functions that led to its call."""
        table = self._survivors.stacks
        trace = table.first_trace[stack]
        result = [self._allocation(int(table.traces["function"][trace]))]
        for row in table.frames_of(trace):
            result += self._frame(row)
        return tuple(result)

    def _allocation(self, number: int) -> Frame:
        name = Function(number).name.lower() if number in set(Function) and number else f"function {number}"
        return Frame(0, "", "", 0, name, 0, None, None, False, Method.REGISTERS.name.lower())

    def _frame(self, row: np.void) -> list[Frame]:
        number, address, vaddr = int(row["module"]), int(row["address"]), int(row["vaddr"])
        is_return = int(row["is_return"])
        files = self._survivors.files
        file = files[number] if number < len(files) else None
        method = Method(row["method"]).name.lower() if int(row["method"]) in set(Method) else "unknown"
        chain = self._names.get((number, vaddr - is_return), NAMELESS)
        return [
            Frame(
                address,
                file.path if file else "",
                file.build_id if file else "",
                vaddr if file else 0,
                one.function,
                # the offset of the return address, as backtrace(3) prints it, not of the byte looked up
                0 if one.inlined or not one.function else one.offset + is_return,
                one.file,
                one.line,
                one.inlined,
                method,
            )
            for one in chain
        ]

    def modules(self) -> tuple[ModuleSummary, ...]:
        files = self._survivors.files
        used = sorted({number for number, _ in self._names}, key=lambda number: files[number].path)
        return tuple(self._summary(files[number]) for number in used)

    def _summary(self, file: ModuleFile) -> ModuleSummary:
        return ModuleSummary(file.path, file.build_id, self._symbolizer.symbol_class(file))


def make_sites(
    survivors: Survivors, sums: Sums, namer: SiteNamer, shown: NDArray[np.bool_], show_allocs: bool
) -> tuple[CallSite, ...]:
    """Sites that hold something, largest first."""
    table = survivors.stacks
    holding = np.flatnonzero(sums.inuse_objects > 0)
    holding = holding[np.argsort(-sums.inuse_space[holding], kind="stable")]
    namer.look_up(holding.tolist())
    blocks = _blocks_by_stack(survivors, shown) if show_allocs else {}
    is_sampled = bool((survivors.snapshot.live["sample_bytes"] > 0).any())
    sites = []
    for stack in holding.tolist():
        frames = namer.frames(stack)
        objects = int(sums.inuse_objects[stack])
        trace = table.first_trace[stack]
        end = int(table.traces["end"][trace])
        is_region = int(table.traces["function"][trace]) >= FIRST_REGION_FUNCTION
        sites.append(
            CallSite(
                id=site_id(frames),
                inuse_space=int(sums.inuse_space[stack]),
                inuse_objects=objects,
                alloc_space=_known(sums.alloc_space[stack]),
                alloc_objects=_known(sums.alloc_objects[stack]),
                oldest_ns=int(sums.oldest_ns[stack]),
                kind="mmap" if is_region else site_kind(frames, objects),
                end=TraceEnd(end).name if end in set(TraceEnd) else "NO_UNWIND_ROW",
                frames=frames,
                approximate=bool(sums.is_approximate[stack]),
                stderr_space=int(np.rint(np.sqrt(sums.variance[stack]))) if is_sampled else None,
                blocks=blocks.get(stack, ()),
            )
        )
    return tuple(sites)


def _known(value: np.int64) -> int | None:
    return int(value) if value >= 0 else None


def _blocks_by_stack(survivors: Survivors, shown: NDArray[np.bool_]) -> dict[int, tuple[Block, ...]]:
    live, now = survivors.snapshot.live, survivors.snapshot.timestamp_ns
    stack = stacks_of_blocks(survivors)
    chosen = np.flatnonzero(shown & (stack != heap.NONE))
    chosen = chosen[np.lexsort((live["timestamp_ns"][chosen], stack[chosen]))]
    bounds = np.flatnonzero(np.diff(stack[chosen])) + 1
    result = {}
    for group in np.split(chosen, bounds):
        if len(group):
            rows: Rows = live[group[:_BLOCKS_SHOWN_MAX]]
            result[int(stack[group[0]])] = tuple(
                Block(address, size, max(0, now - at), pid, tid)
                for address, size, at, pid, tid in zip(
                    *(rows[name].tolist() for name in ("address", "size", "timestamp_ns", "pid", "tid")),
                    strict=True,
                )
            )
    return result
