"""Survivors → call sites: sums per stack, frames with names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.leak_sums import leaks_by_stack
from memleak_android.host.analysis.progress import ProgressCallback, no_progress
from memleak_android.host.heap import attribution
from memleak_android.host.heap.key_history import key_identity
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.profile import (
    AGE_BOUNDS_S,
    Block,
    CallSite,
    Frame,
    Growth,
    ModuleSummary,
    ProcessShare,
    ThreadSum,
)
from memleak_android.host.profile.runtime_sites import site_kind
from memleak_android.host.profile.site_id import id_of_parts, identity_part
from memleak_android.host.profile.sort_orders import WEIGHTS
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.symbols.symbolizer import NAMELESS, ResolvedFrame, Symbolizer
from memleak_android.host.wire.blocks import (
    FIRST_KERNEL_FUNCTION,
    FIRST_PAIR_FUNCTION,
    FIRST_REGION_FUNCTION,
    Function,
    KeyFlag,
    Rows,
)
from memleak_android.unwind.trace import Method, TraceEnd

_BLOCKS_SHOWN_MAX = 100_000  # of --show-allocs, per site
_THREADS_SHOWN_MAX = 1_000
_STACKS_AT_ONCE = 1 << 16
_SITES_PER_TELL = 1 << 12
_END_NAMES = {end.value: end.name for end in TraceEnd}


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
    ages: NDArray[np.int64]  # (stacks, len(AGE_BOUNDS_S) + 1) blocks


def stacks_of_blocks(survivors: Survivors) -> NDArray[np.int64]:
    """For each live block the number of its stack, attribution.UNATTRIBUTED = unattributed."""
    table = survivors.stacks
    if not len(table):
        return np.full(len(survivors.trace), attribution.UNATTRIBUTED, np.int64)
    return np.where(survivors.trace >= 0, table.stack_of_trace[survivors.trace], attribution.UNATTRIBUTED)


def sum_by_stack(survivors: Survivors, shown: NDArray[np.bool_]) -> Sums:
    """Sums of the `shown` blocks (by block)."""
    table, snapshot = survivors.stacks, survivors.snapshot
    n = len(table.first_trace)
    stacks = stacks_of_blocks(survivors)
    space, objects, variance = (np.zeros(n, np.float64) for _ in range(3))
    oldest = np.full(n, snapshot.timestamp_ns, np.int64)
    ages = np.zeros((n, len(AGE_BOUNDS_S) + 1), np.float64)
    approximate = np.zeros(n, bool)
    for part in attribution.chunks(len(stacks)):
        chosen = shown[part] & (stacks[part] != attribution.UNATTRIBUTED)
        stack, live = stacks[part][chosen], snapshot.live[part][chosen]
        weight = attribution.sampling_weights(live)
        space += np.bincount(stack, live["size"].astype(np.float64) * weight, n)
        objects += np.bincount(stack, weight, n)
        variance += np.bincount(stack, attribution.variances(live, weight), n)
        ages += _ages(snapshot.timestamp_ns, live, stack, weight, n)
        np.minimum.at(oldest, stack, live["timestamp_ns"].astype(np.int64))
        approximate[stack[survivors.is_approximate[part][chosen]]] = True
    age = np.maximum(snapshot.timestamp_ns - oldest, 0)
    counters = _sum_counters(survivors, n)
    return Sums(_whole(space), _whole(objects), variance, age, approximate, *counters, _whole(ages))


def _ages(
    now_ns: int, live: Rows, stack: NDArray[np.int64], weight: NDArray[np.float64], n: int
) -> NDArray[np.float64]:
    """Blocks of each of n stacks by age."""
    age_ns = np.maximum(now_ns - live["timestamp_ns"].astype(np.int64), 0)
    bucket = np.digitize(age_ns, np.array(AGE_BOUNDS_S, np.int64) * 10**9)
    n_buckets = len(AGE_BOUNDS_S) + 1
    counts = np.bincount(stack * n_buckets + bucket, weight, n * n_buckets)
    return np.asarray(counts.reshape(n, n_buckets), np.float64)


def _whole(sums: NDArray[Any]) -> NDArray[np.int64]:
    """Rounded; sums of floats are exact below 2^53."""
    return np.asarray(np.rint(np.minimum(sums, 2.0**62)).astype(np.int64))


def largest_sums(sums: Sums, growth: Mapping[int, Growth], most: int) -> Sums:
    """Sums without the blocks of stacks that are in no sort order among the first `most`."""
    rate = np.zeros(len(sums.inuse_space))
    for stack, trend in growth.items():
        rate[stack] = max(0.0, trend.bytes_per_s)
    keep = np.zeros(len(rate), bool)
    for weight in set(WEIGHTS.values()):
        column = weight(sums.inuse_space, sums.inuse_objects, rate)
        largest = np.argsort(-column, kind="stable")[:most]
        keep[largest[column[largest] > 0]] = True
    return replace(sums, inuse_objects=np.where(keep, sums.inuse_objects, 0))


def _sum_counters(survivors: Survivors, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Allocated bytes and objects per stack, from the counters of its keys; -1 where a key is shared or uncounted.

    Where the tracer sampled they count the samples: nothing is known.
    """
    table, counters = survivors.stacks, survivors.snapshot.keys
    if survivors.snapshot.live["sample_bytes"].any() or not len(counters):
        return np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    identity, stack = _distinct_pairs(key_identity(table.traces), table.stack_of_trace)
    counted = key_identity(counters)
    order = np.argsort(counted, kind="stable")
    place = np.searchsorted(counted[order], identity, side="right") - 1  # of several the last that was sent
    row = order[np.maximum(place, 0)]
    is_shared = np.zeros(len(identity), bool)
    is_shared[1:] = identity[1:] == identity[:-1]
    is_shared[:-1] |= is_shared[1:]
    is_ambiguous = (counters["flags"][row] & np.uint64(KeyFlag.AMBIGUOUS)) != 0
    unknown = (place < 0) | (counted[row] != identity) | is_shared | is_ambiguous
    sums = []
    for name in ("alloc_bytes", "alloc_objects"):
        values = np.where(unknown, 0, counters[name][row].astype(np.int64))
        total = np.zeros(n, np.int64)
        np.add.at(total, stack, values)
        total[stack[unknown]] = -1
        sums.append(total)
    return sums[0], sums[1]


def _distinct_pairs(
    first: NDArray[np.uint64], second: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Sorted by the first, then by the second."""
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    is_new = np.ones(len(first), bool)
    is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return first[is_new], second[is_new]


def thread_sums(survivors: Survivors) -> tuple[ThreadSum, ...]:
    """Of the heap's live blocks by the thread that allocated them; the _THREADS_SHOWN_MAX largest."""
    live = survivors.snapshot.live
    sums: dict[int, NDArray[np.float64]] = {}
    for part in attribution.chunks(len(live)):
        rows = live[part][~attribution.is_region(live[part])]
        weight = attribution.sampling_weights(rows)
        names = rows["pid"].astype(np.uint64) << np.uint64(32) | rows["tid"]
        threads, number = np.unique(names, return_inverse=True)
        space = np.bincount(number, rows["size"].astype(np.float64) * weight, len(threads))
        found = np.stack([space, np.bincount(number, weight, len(threads))], axis=1)
        for thread, sum_ in zip(threads.tolist(), found, strict=True):
            sums[thread] = sums.get(thread, 0) + sum_
    ordered = sorted(sums)
    names = np.array(ordered, np.uint64)
    space, objects = (_whole(np.array([sums[one][i] for one in ordered])) for i in range(2))
    largest = np.argsort(-space, kind="stable")[:_THREADS_SHOWN_MAX]
    columns = (names >> np.uint64(32), names & np.uint64(0xFFFFFFFF), space, objects)
    return tuple(
        ThreadSum(*row) for row in zip(*(column[largest].tolist() for column in columns), strict=True)
    )


class SiteNamer:
    """Makes the frames of stacks, with names. Addresses are looked up together, module by module."""

    def __init__(
        self, survivors: Survivors, symbolizer: Symbolizer, pairs: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._pairs = pairs
        self._survivors = survivors
        self._symbolizer = symbolizer
        self._used: set[int] = set()  # numbers of modules
        self._places: list[tuple[Frame, ...]] = []  # by number of the place in the table of stacks
        self._identities: list[bytes] = []  # likewise: what a site's id is made of

    def look_up(self, stacks: NDArray[np.int64]) -> None:
        """Before named() is asked for any of these."""
        table = self._survivors.stacks
        n_new = len(table.places) - len(self._places)
        self._places += [()] * n_new
        self._identities += [b""] * n_new  # none is empty once it is known
        used = np.flatnonzero(table.places_used(table.first_trace[stacks]))
        places = np.array([place for place in used.tolist() if not self._identities[place]], np.int64)
        rows = table.places[places]
        names = self._resolve(rows)
        for place, row in zip(places.tolist(), rows, strict=True):
            frames = self._frame(row, names)
            self._places[place] = frames
            self._identities[place] = b"\n".join(identity_part(frame) for frame in frames)

    def _resolve(self, rows: Rows) -> dict[tuple[int, int], tuple[ResolvedFrame, ...]]:
        """By module number and vaddr that was looked up."""
        names: dict[tuple[int, int], tuple[ResolvedFrame, ...]] = {}
        vaddrs = rows["vaddr"] - rows["is_return"]
        for number in np.unique(rows["module"]).tolist():
            if number < len(self._survivors.files):
                self._used.add(number)
                wanted = np.unique(vaddrs[rows["module"] == number])
                chains = self._symbolizer.resolve(self._survivors.files[number], wanted)
                names.update(zip(((number, vaddr) for vaddr in wanted.tolist()), chains, strict=True))
        return names

    def named(self, stacks: NDArray[np.int64]) -> Iterator[tuple[tuple[Frame, ...], str]]:
        """Of each stack its frames, innermost first: the allocation function, then the functions that led to its
        call; and the site's id."""
        table = self._survivors.stacks
        calls = {number: self._allocation(number) for number in np.unique(table.traces["function"]).tolist()}
        identities = {number: identity_part(call) for number, call in calls.items()}
        frames_of, identity_of = self._places.__getitem__, self._identities.__getitem__
        for first in range(0, len(stacks), _STACKS_AT_ONCE):
            traces = table.first_trace[stacks[first : first + _STACKS_AT_ONCE]]
            numbers = table.traces["function"][traces].tolist()
            for number, trace in zip(numbers, traces.tolist(), strict=True):
                places = table.places_of(trace).tolist()
                frames = tuple(chain((calls[number],), chain.from_iterable(map(frames_of, places))))
                yield frames, id_of_parts([identities[number], *map(identity_of, places)])

    def ids_of(self, stacks: NDArray[np.int64]) -> list[str]:
        """The sites' ids of these stacks."""
        self.look_up(np.unique(stacks))
        return [id_ for _, id_ in self.named(stacks)]

    def _allocation(self, number: int) -> Frame:
        known = number in set(Function) and 0 < number < FIRST_PAIR_FUNCTION
        name = Function(number).name.lower() if known else self._pair_of(number)[1]
        return Frame(0, "", "", 0, name, 0, None, None, False, Method.REGISTERS.name.lower())

    def _pair_of(self, number: int) -> tuple[str, str]:
        """Name of the pair and of its function."""
        place = number - FIRST_PAIR_FUNCTION
        return self._pairs[place] if 0 <= place < len(self._pairs) else (str(number), f"function {number}")

    def kind(self, function: int, frames: Sequence[Frame], objects: int) -> str:
        """Of a stack that ends in a call of this function (wire.Function)."""
        if function >= FIRST_PAIR_FUNCTION:
            return f"pair:{self._pair_of(function)[0]}"
        if function >= FIRST_REGION_FUNCTION:
            return "mmap"
        return "kernel" if function >= FIRST_KERNEL_FUNCTION else site_kind(frames, objects)

    def _frame(
        self, row: np.void, names: Mapping[tuple[int, int], tuple[ResolvedFrame, ...]]
    ) -> tuple[Frame, ...]:
        number, address, vaddr = int(row["module"]), int(row["address"]), int(row["vaddr"])
        is_return = int(row["is_return"])
        files = self._survivors.files
        file = files[number] if number < len(files) else None
        method = Method(row["method"]).name.lower() if int(row["method"]) in set(Method) else "unknown"
        found = names.get((number, vaddr - is_return), NAMELESS)
        return tuple(
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
            for one in found
        )

    def modules(self) -> tuple[ModuleSummary, ...]:
        files = self._survivors.files
        used = sorted(self._used, key=lambda number: files[number].path)
        return tuple(self._summary(files[number]) for number in used)

    def _summary(self, file: ModuleFile) -> ModuleSummary:
        return ModuleSummary(file.path, file.build_id, self._symbolizer.symbol_class(file))


def make_sites(
    survivors: Survivors,
    sums: Sums,
    namer: SiteNamer,
    shown: NDArray[np.bool_],
    show_allocs: bool,
    growth: Mapping[int, Growth],
    tell: ProgressCallback = no_progress,
    processes: Mapping[int, tuple[ProcessShare, ...]] = {},
) -> tuple[CallSite, ...]:
    """Sites that hold something, largest first. growth, processes: by number of the stack."""
    table = survivors.stacks
    holding = np.flatnonzero(sums.inuse_objects > 0)
    holding = holding[np.argsort(-sums.inuse_space[holding], kind="stable")]
    namer.look_up(holding)
    blocks = _blocks_by_stack(survivors, shown) if show_allocs else {}
    leaks = leaks_by_stack(survivors, stacks_of_blocks(survivors), shown)
    is_sampled = bool((survivors.snapshot.live["sample_bytes"] > 0).any())
    traces = table.traces[table.first_trace[holding]]
    columns = (
        holding,
        *(column[holding] for column in (sums.inuse_space, sums.inuse_objects, sums.alloc_space)),
        *(column[holding] for column in (sums.alloc_objects, sums.oldest_ns, sums.is_approximate)),
        _whole(np.sqrt(sums.variance[holding])),
        traces["function"],
        traces["end"],
    )
    known_ages: dict[tuple[int, ...], tuple[int, ...]] = {}  # of a million stacks most are alike
    rows = _rows(columns)
    sites: list[CallSite] = []
    for row, (frames, id_) in zip(rows, namer.named(holding), strict=True):
        if len(sites) % _SITES_PER_TELL == 0:
            tell("naming stacks", len(sites) / len(holding))
        stack, space, objects, alloc_space, alloc_objects, oldest, approximate, error, function, end = row
        ages = tuple(sums.ages[stack].tolist())
        sites.append(
            CallSite(
                id=id_,
                inuse_space=space,
                inuse_objects=objects,
                alloc_space=_known(alloc_space),
                alloc_objects=_known(alloc_objects),
                oldest_ns=oldest,
                kind=namer.kind(function, frames, objects),
                end=end_name(end),
                frames=frames,
                approximate=approximate,
                stderr_space=error if is_sampled else None,
                blocks=blocks.get(stack, ()),
                growth=growth.get(stack),
                leaks=leaks.get(stack, ()),
                processes=processes.get(stack, ()),
                ages=known_ages.setdefault(ages, ages),
            )
        )
    return tuple(sites)


def _rows(columns: Sequence[NDArray[Any]]) -> Iterator[tuple[Any, ...]]:
    """Of columns of equal length; a part of them at a time are Python's numbers."""
    for first in range(0, len(columns[0]), _STACKS_AT_ONCE):
        part = slice(first, first + _STACKS_AT_ONCE)
        yield from zip(*(column[part].tolist() for column in columns), strict=True)


def end_name(number: int) -> str:
    return _END_NAMES.get(number, "NO_UNWIND_ROW")


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _blocks_by_stack(survivors: Survivors, shown: NDArray[np.bool_]) -> dict[int, tuple[Block, ...]]:
    live, now = survivors.snapshot.live, survivors.snapshot.timestamp_ns
    stack = stacks_of_blocks(survivors)
    chosen = np.flatnonzero(shown & (stack != attribution.UNATTRIBUTED))
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
