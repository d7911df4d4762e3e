"""Live blocks → sums: by stack, by thread, by process and stack, by kind of leak, and in all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap.attribution import UNATTRIBUTED, sampling_weights, variances
from memleak_android.host.heap.keys import KeyStacks
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.growth import Growth
from memleak_android.host.profile.profile import AGE_BOUNDS_S, Block, LeakKind, LeakSum, ThreadSum
from memleak_android.host.profile.sort_orders import WEIGHTS
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, FIRST_REGION_FUNCTION, Rows

_BLOCKS_SHOWN_MAX = 100_000  # of --show-allocs, per site
_THREADS_SHOWN_MAX = 1_000
_KINDS = tuple(LeakKind)
_BLOCKS_PER_CHUNK = 1 << 18
_N_AGES = len(AGE_BOUNDS_S) + 1

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """n live blocks.

    rows: LIVE_ROW. stack: number of the stack, UNATTRIBUTED = none. weight: how many blocks each stands for.
    variance: of its contribution to a sum of bytes. leak_kind: of --reachability, negative = not judged.
    """

    rows: Rows
    stack: NDArray[np.int64]
    weight: NDArray[np.float64]
    variance: NDArray[np.float64]
    is_approximate: NDArray[np.bool_]
    leak_kind: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, chosen: NDArray[np.bool_] | slice) -> HeldBlocks:
        columns = {name: getattr(self, name)[chosen] for name in self.__slots__}
        return replace(self, **columns)

    def chunks(self, chosen: NDArray[np.bool_]) -> Iterator[HeldBlocks]:
        """The `chosen` blocks in parts, so that what is computed from a part stays small."""
        for first in range(0, len(self), _BLOCKS_PER_CHUNK):
            part = slice(first, first + _BLOCKS_PER_CHUNK)
            yield self.where(part).where(chosen[part])


def held_blocks(survivors: Survivors) -> HeldBlocks:
    live, n = survivors.snapshot.live, len(survivors.trace)
    weight, variance = np.broadcast_to(1.0, n), np.broadcast_to(0.0, n)  # no memory, unless sampled
    if live["sample_bytes"].any():
        weight = sampling_weights(live)
        variance = variances(live, weight)
    kinds = np.broadcast_to(np.int8(-1), n) if survivors.leak_kinds is None else survivors.leak_kinds
    stack = survivors.stacks.stacks_of(survivors.trace)
    return HeldBlocks(live, stack, weight, variance, survivors.is_approximate, kinds)


@dataclass(frozen=True, slots=True)
class StackSums:
    """Per stack of the table, columns of equal length. alloc_* is -1 where it is unknown."""

    inuse_space: Numbers
    inuse_objects: Numbers
    variance: NDArray[np.float64]
    oldest_ns: Numbers
    is_approximate: NDArray[np.bool_]
    alloc_space: Numbers
    alloc_objects: Numbers
    ages: Numbers  # (stacks, _N_AGES) blocks


@dataclass(frozen=True, slots=True)
class Holdings:
    """By process and stack (UNATTRIBUTED: blocks without one), in this order: bytes and blocks."""

    pid: Numbers
    stack: Numbers
    space: NDArray[np.float64]
    objects: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Bytes and blocks are estimates where the tracer sampled.

    shown: sums by stack of the blocks that the view shows. stacks: of all blocks. inuse, unattributed, omitted: bytes and
    blocks, regions left out. by_process: None = a session of one process. leaks, blocks: of the shown blocks, by stack.
    """

    shown: StackSums
    stacks: StackSums
    inuse: tuple[int, int]
    unattributed: tuple[int, int]
    omitted: tuple[int, int]
    threads: tuple[ThreadSum, ...]
    all_leaks: tuple[LeakSum, ...]
    leaks: Mapping[int, tuple[LeakSum, ...]]
    shown_by_process: Holdings | None
    by_process: Holdings | None
    blocks: Mapping[int, tuple[Block, ...]]
    is_sampled: bool


def sum_blocks(
    held: HeldBlocks,
    keys: KeyStacks,
    counters: Rows,
    now_ns: int,
    shown: NDArray[np.bool_],
    is_omitted: NDArray[np.bool_],
    show_allocs: bool = False,
    is_whole_machine: bool = False,
) -> BlockSums:
    """counters: KEY_ROW. shown, is_omitted: by block. is_whole_machine: sums by process even where one holds all."""
    function = held.rows["function"]
    is_block = (function < FIRST_REGION_FUNCTION) | (function >= FIRST_PAIR_FUNCTION)  # regions are no blocks
    is_unattributed = is_block & (held.stack == UNATTRIBUTED)
    is_sampled = bool(held.rows["sample_bytes"].any())
    counted = _sum_counters(keys, counters, is_sampled)
    of_shown = _sum_by_stack(held, shown, now_ns, keys.n_stacks, counted)
    everything = np.ones(len(held), bool)
    by_process = is_whole_machine or len(np.unique(held.rows["pid"])) > 1
    return BlockSums(
        shown=of_shown,
        stacks=of_shown if shown.all() else _sum_by_stack(held, everything, now_ns, keys.n_stacks, counted),
        inuse=_sum(held, is_block, is_sampled),
        unattributed=_sum(held, is_unattributed, is_sampled),
        omitted=_sum(held, is_unattributed & is_omitted, is_sampled),
        threads=_thread_sums(held, is_block),
        all_leaks=_leaks(held, held.leak_kind >= 0, np.zeros(len(held), np.int64)).get(0, ()),
        leaks=_leaks(held, shown & (held.leak_kind >= 0) & (held.stack >= 0), held.stack),
        shown_by_process=_by_process(held, shown, keys.n_stacks) if by_process else None,
        by_process=_by_process(held, is_block, keys.n_stacks) if by_process else None,
        blocks=_blocks_by_stack(held, shown, now_ns) if show_allocs else {},
        is_sampled=is_sampled,
    )


def _sum_by_stack(
    held: HeldBlocks, chosen: NDArray[np.bool_], now_ns: int, n: int, counted: tuple[Numbers, Numbers]
) -> StackSums:
    space, objects, variance = (np.zeros(n, np.float64) for _ in range(3))
    oldest = np.full(n, now_ns, np.int64)
    ages = np.zeros(n * _N_AGES, np.float64)
    approximate = np.zeros(n, bool)
    for part in held.chunks(chosen & (held.stack != UNATTRIBUTED)):
        born_ns = part.rows["timestamp_ns"].astype(np.int64)
        space += np.bincount(part.stack, part.rows["size"].astype(np.float64) * part.weight, n)
        objects += np.bincount(part.stack, part.weight, n)
        variance += np.bincount(part.stack, part.variance, n)
        bucket = np.digitize(np.maximum(now_ns - born_ns, 0), np.array(AGE_BOUNDS_S, np.int64) * 10**9)
        ages += np.bincount(part.stack * _N_AGES + bucket, part.weight, n * _N_AGES)
        np.minimum.at(oldest, part.stack, born_ns)
        approximate[part.stack[part.is_approximate]] = True
    return StackSums(
        inuse_space=rounded(space),
        inuse_objects=rounded(objects),
        variance=variance,
        oldest_ns=np.maximum(now_ns - oldest, 0),
        is_approximate=approximate,
        alloc_space=counted[0],
        alloc_objects=counted[1],
        ages=rounded(ages).reshape(n, _N_AGES),
    )


def _sum_counters(keys: KeyStacks, counters: Rows, is_sampled: bool) -> tuple[Numbers, Numbers]:
    """Allocated bytes and objects per stack, from the counters of its keys; -1 where a key is shared or uncounted.

    With sampling the counters count samples, so nothing is known.
    """
    if is_sampled or not len(counters):
        return np.full(keys.n_stacks, -1, np.int64), np.full(keys.n_stacks, -1, np.int64)
    index, is_found = keys.find(counters)
    row = np.full(len(keys.keys), -1, np.int64)
    np.maximum.at(row, index[is_found], np.flatnonzero(is_found))  # the last row that was sent of a key
    unknown = (row < 0) | keys.is_shared
    sums = []
    for name in ("alloc_bytes", "alloc_objects"):
        total = np.zeros(keys.n_stacks, np.int64)
        np.add.at(total, keys.stack[~unknown], counters[name][row[~unknown]].astype(np.int64))
        total[keys.stack_of_trace[unknown[keys.key_of_trace]]] = -1
        sums.append(total)
    return sums[0], sums[1]


def _sum(held: HeldBlocks, chosen: NDArray[np.bool_], is_sampled: bool) -> tuple[int, int]:
    """Bytes and blocks."""
    if not is_sampled:
        size = held.rows["size"][chosen]
        high, low = (size >> np.uint64(32)).sum(), (size & np.uint64(0xFFFFFFFF)).sum()
        return (int(high) << 32) + int(low), len(size)
    space = objects = 0.0
    for part in held.chunks(chosen):
        space += float((part.rows["size"] * part.weight).sum())
        objects += float(part.weight.sum())
    return round(space), round(objects)


def _thread_sums(held: HeldBlocks, chosen: NDArray[np.bool_]) -> tuple[ThreadSum, ...]:
    """The _THREADS_SHOWN_MAX threads that hold most."""
    threads = (
        (part.rows["pid"].astype(np.uint64) << np.uint64(32) | part.rows["tid"], part)
        for part in held.chunks(chosen)
    )
    names, sums = _grouped(threads, np.uint64)
    space, objects = rounded(sums[:, 0]), rounded(sums[:, 1])
    largest = np.argsort(-space, kind="stable")[:_THREADS_SHOWN_MAX]
    columns = (names >> np.uint64(32), names & np.uint64(0xFFFFFFFF), space, objects)
    rows = zip(*(column[largest].tolist() for column in columns), strict=True)
    return tuple(ThreadSum(*row) for row in rows)


def _by_process(held: HeldBlocks, chosen: NDArray[np.bool_], n_stacks: int) -> Holdings:
    pids = np.unique(held.rows["pid"])
    width = n_stacks + 1  # the first of each process: blocks without a stack
    pairs = (
        (np.searchsorted(pids, part.rows["pid"]).astype(np.int64) * width + part.stack + 1, part)
        for part in held.chunks(chosen)
    )
    names, sums = _grouped(pairs, np.int64)
    return Holdings(pids[names // width], names % width - 1, sums[:, 0], sums[:, 1])


def _grouped(parts: Iterable[tuple[NDArray[Any], HeldBlocks]], dtype: type[Any]) -> tuple[Any, Any]:
    """Distinct numbers, sorted, and (n, 2) bytes and blocks of each. parts: a number by block, and the blocks."""
    sums: dict[int, NDArray[np.float64]] = {}
    for numbers, part in parts:
        groups, number = np.unique(numbers, return_inverse=True)
        space = np.bincount(number, part.rows["size"].astype(np.float64) * part.weight, len(groups))
        found = np.stack([space, np.bincount(number, part.weight, len(groups))], axis=1)
        for group, sum_ in zip(groups.tolist(), found, strict=True):
            sums[group] = sums.get(group, 0) + sum_
    ordered = sorted(sums)
    columns = np.array([sums[group] for group in ordered], np.float64).reshape(-1, 2)
    return np.array(ordered, dtype), columns


def _leaks(held: HeldBlocks, chosen: NDArray[np.bool_], groups: Numbers) -> dict[int, tuple[LeakSum, ...]]:
    """Sums by kind of the chosen blocks (all judged), by their group."""
    indexes = np.flatnonzero(chosen)
    pairs, number = np.unique(groups[indexes] * len(_KINDS) + held.leak_kind[indexes], return_inverse=True)
    size = held.rows["size"][indexes].astype(np.float64)
    space, objects = np.bincount(number, size, len(pairs)), np.bincount(number, minlength=len(pairs))
    result: dict[int, tuple[LeakSum, ...]] = {}
    for pair, bytes_, count in zip(pairs.tolist(), space.tolist(), objects.tolist(), strict=True):
        group, kind = divmod(pair, len(_KINDS))
        result[group] = (*result.get(group, ()), LeakSum(_KINDS[kind], round(bytes_), count))
    return result


def _blocks_by_stack(held: HeldBlocks, shown: NDArray[np.bool_], now_ns: int) -> dict[int, tuple[Block, ...]]:
    live, stack = held.rows, held.stack
    chosen = np.flatnonzero(shown & (stack != UNATTRIBUTED))
    chosen = chosen[np.lexsort((live["timestamp_ns"][chosen], stack[chosen]))]
    result = {}
    for group in np.split(chosen, np.flatnonzero(np.diff(stack[chosen])) + 1):
        if len(group):
            rows = live[group[:_BLOCKS_SHOWN_MAX]]
            names = ("address", "size", "timestamp_ns", "pid", "tid")
            columns = zip(*(rows[name].tolist() for name in names), strict=True)
            result[int(stack[group[0]])] = tuple(
                Block(address, size, max(0, now_ns - born_ns), pid, tid)
                for address, size, born_ns, pid, tid in columns
            )
    return result


def largest_sums(sums: StackSums, growth: Mapping[int, Growth], most: int) -> StackSums:
    """Sums without the blocks of stacks that are in no sort order among the first `most`."""
    rate = np.zeros(len(sums.inuse_space))
    for stack, trend in growth.items():
        rate[stack] = max(0.0, trend.bytes_per_s)
    keep = np.zeros(len(rate), bool)
    for weight in set(WEIGHTS.values()):
        column = weight(sums.inuse_space, sums.inuse_objects, rate)
        largest = np.argsort(-column, kind="stable")[:most]
        keep[largest[column[largest] > 0]] = True
    return without_stacks(sums, ~keep)


def without_stacks(sums: StackSums, left_out: NDArray[np.bool_]) -> StackSums:
    """Sums without the blocks of some stacks."""
    return replace(sums, inuse_objects=np.where(left_out, 0, sums.inuse_objects))


def rounded(sums: NDArray[Any]) -> Numbers:
    """Sums of floats are exact below 2^53."""
    return np.asarray(np.rint(np.minimum(sums, 2.0**62)).astype(np.int64))
