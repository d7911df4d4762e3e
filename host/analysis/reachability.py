"""Memory blocks + the references found in a stopped process → the kind of leak of each block, in valgrind's terms.

Pure: host/machine/scan/local.py reads the process. The kinds are those of memcheck's manual,
"Memory leak detection": a start-pointer refers to a block's first byte, an interior pointer to any later one. None of
memcheck's --leak-check-heuristics is applied: any interior pointer makes a block possibly lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Snapshot
from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.host.profile.profile import LeakKind
from memleak_android.host.wire.blocks import Rows
from memleak_android.host.wire.packed import ranges

KINDS = tuple(LeakKind)  # numbers of kinds are indexes into it
NOT_JUDGED = -1  # kind of a block that did not exist at the stop, or of another process
_FEW = 64  # blocks of a frontier; below that, single steps cost less than array operations

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Graph:
    """References between blocks: targets[first[b]:first[b + 1]] are those of block b."""

    first: Numbers
    targets: Numbers

    @classmethod
    def make(cls, sources: Numbers, targets: Numbers, n_blocks: int) -> _Graph:
        order = np.argsort(sources, kind="stable")
        counts = np.bincount(sources, minlength=n_blocks)
        return cls(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), targets[order])

    def spread(self, seeds: Numbers, reached: NDArray[np.bool_]) -> None:
        """Marks the seeds and all blocks reachable from them; does not go beyond marked blocks."""
        frontier = np.unique(seeds[~reached[seeds]])
        reached[frontier] = True
        while len(frontier):
            few = len(frontier) < _FEW
            frontier = self._few_steps(frontier, reached) if few else self._step(frontier, reached)

    def _step(self, frontier: Numbers, reached: NDArray[np.bool_]) -> Numbers:
        begins = self.first[frontier]
        found = self.targets[ranges(begins, self.first[frontier + 1] - begins)]
        found = np.unique(found[~reached[found]])
        reached[found] = True
        return found

    def _few_steps(self, frontier: Numbers, reached: NDArray[np.bool_]) -> Numbers:
        """Follows lists and small trees block by block, until the frontier has many blocks."""
        first, targets, marks = self.first.data, self.targets.data, reached.data
        now: list[int] = frontier.tolist()
        while now and len(now) < _FEW:
            found = []
            for block in now:
                for target in targets[first[block] : first[block + 1]]:
                    if not marks[target]:
                        marks[target] = True
                        found.append(target)
            now = found
        return np.array(now, np.int64)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks allocated at the stop, by address, without overlap.

    row: index in the final live table of a block that certainly existed; -1 = it was freed since, or allocated before the
    stop by its time only. These are not judged, and their memory may have belonged to another block.
    """

    start: Addresses
    size: Addresses
    row: Numbers

    def holding(self, addresses: Addresses) -> Numbers:
        """(n,) the block in which each address lies, -1 = none. An empty block holds its own address."""
        if not len(self.start):
            return np.full(len(addresses), -1, np.int64)
        index = np.searchsorted(self.start, addresses, "right") - 1
        block = np.maximum(index, 0)
        inside = (addresses - self.start[block]) < np.maximum(self.size[block], np.uint64(1))
        return np.where((index >= 0) & inside, index, -1)


def blocks_at_stop(before: Rows, after: Rows, stopped_at_ns: int) -> Blocks:
    """From the live tables (LIVE_ROW) before and after the stop.

    Blocks in both certainly existed. A block only in the later one may have been allocated after the stop even if its time
    is earlier: the shim notes one time for several allocations of a thread. A block only in the earlier one was freed before
    the stop or since. Both count as existing, unless a more certain block overlaps them.
    """
    there = np.flatnonzero((after["timestamp_ns"] <= np.uint64(stopped_at_ns)) & attribution.is_heap(after))
    there = there[np.argsort(after["address"][there], kind="stable")]
    row = np.where(np.isin(after["sequence"][there], before["sequence"]), there, -1)
    certain = Blocks(after["address"][there], after["size"][there], row)
    gone = before[attribution.is_heap(before) & ~np.isin(before["sequence"], after["sequence"][there])]
    last = gone["address"] + np.maximum(gone["size"], np.uint64(1)) - np.uint64(1)
    following = np.searchsorted(certain.start, gone["address"], "left")
    is_free = certain.holding(gone["address"]) < 0
    is_free &= following == np.searchsorted(certain.start, last, "right")
    gone = gone[is_free]
    start = np.concatenate([certain.start, gone["address"]])
    order = np.argsort(start, kind="stable")
    size = np.concatenate([certain.size, gone["size"]])
    row = np.concatenate([row, np.full(len(gone), -1)])
    return Blocks(start[order], size[order], row[order])


def was_quiet(before: Snapshot, after: Snapshot) -> bool:
    """All blocks allocated between the snapshots are in the later one: no block is unknown."""
    if not (before.is_whole and after.is_whole) or after.live["sample_bytes"].any():
        return False
    counted = [int(snapshot.keys["alloc_objects"].sum()) for snapshot in (before, after)]
    is_new = ~np.isin(after.live["sequence"], before.live["sequence"]) & attribution.is_heap(after.live)
    return counted[1] - counted[0] <= int(is_new.sum())


def leak_kinds(scan: MemoryScan, blocks: Blocks, unrecorded: LeakKind | None) -> NDArray[np.int8]:
    """(blocks,) the kind of each block, as an index into KINDS.

    unrecorded: the best kind of a block that is referred to only from the allocator's memory outside recorded blocks
    (STILL_REACHABLE, POSSIBLY_LOST); None = that memory holds free blocks and bookkeeping, and counts as no reference. The
    memory of uncertain blocks counts as such memory, too.
    """
    n = len(blocks.start)
    if not n:
        return np.empty(0, np.int8)
    target, is_start = _targets(scan, blocks)
    source = blocks.holding(scan.source)
    is_heap = (source < 0) & _within(scan.source, scan.allocator)
    is_root, is_edge = (source < 0) & ~is_heap & (target >= 0), (source >= 0) & (target >= 0)
    is_loose = (is_heap | ((source >= 0) & (blocks.row[source] < 0))) & (target >= 0)
    if unrecorded is LeakKind.STILL_REACHABLE:
        is_root |= is_loose
    reachable, held = np.zeros(n, bool), np.zeros(n, bool)
    by_start = is_edge & is_start
    _Graph.make(source[by_start], target[by_start], n).spread(target[is_root & is_start], reachable)
    seeds = is_root | (is_edge & reachable[source])
    if unrecorded is LeakKind.POSSIBLY_LOST:
        seeds |= is_loose
    graph = _Graph.make(source[is_edge], target[is_edge], n)
    held |= reachable
    graph.spread(target[seeds], held)
    leaders = _leaders(graph, source[is_edge], target[is_edge], ~held)
    kinds = np.full(n, KINDS.index(LeakKind.INDIRECTLY_LOST), np.int8)
    kinds[leaders] = KINDS.index(LeakKind.DEFINITELY_LOST)
    kinds[held] = KINDS.index(LeakKind.POSSIBLY_LOST)
    kinds[reachable] = KINDS.index(LeakKind.STILL_REACHABLE)
    return kinds


def _targets(scan: MemoryScan, blocks: Blocks) -> tuple[Numbers, NDArray[np.bool_]]:
    """For each word the block it refers to (-1 = none), and whether it is the address of the first byte.

    glibc's arena, in the C library's data, refers to free chunks by the address two words before the user's pointer
    (malloc/malloc.c, "chunk2mem"), which is the last word of the block before. These do not count as references.
    """
    target = blocks.holding(scan.value)
    block = np.maximum(target, 0)
    is_start = (target >= 0) & (blocks.start[block] == scan.value)
    left = blocks.start[block] + blocks.size[block] - scan.value
    word = np.uint64(scan.word_bytes)
    is_chunk = (target >= 0) & ~is_start & (left <= word) & (scan.value % (np.uint64(2) * word) == 0)
    is_chunk &= _within(scan.source, scan.libc)
    return np.where(is_chunk, -1, target), is_start


def _within(addresses: Addresses, bounds: Addresses) -> NDArray[np.bool_]:
    """bounds: (n, 2) sorted, without overlap."""
    if not len(bounds):
        return np.zeros(len(addresses), bool)
    index = np.searchsorted(bounds[:, 0], addresses, "right") - 1
    return np.asarray((index >= 0) & (addresses < bounds[np.maximum(index, 0), 1]))


def _leaders(graph: _Graph, sources: Numbers, targets: Numbers, lost: NDArray[np.bool_]) -> Numbers:
    """Lost blocks without a reference from another lost block; of an unreferenced cycle, the block at the lowest address.

    In address order, each block that is not reached yet becomes a candidate. Then the same in reverse among the candidates:
    one that is reached from a later candidate is dropped.
    """
    inner = lost[sources] & (sources != targets)
    referred = np.zeros(len(lost), bool)
    referred[targets[inner]] = True
    heads = np.flatnonzero(lost & ~referred)
    reached = ~lost
    graph.spread(heads, reached)
    rest = reached.copy()
    candidates = []
    for block in np.flatnonzero(~rest).tolist():
        if not rest[block]:
            candidates.append(block)
            graph.spread(np.array([block]), rest)
    leaders = []
    for block in reversed(candidates):
        if not reached[block]:
            leaders.append(block)
            graph.spread(np.array([block]), reached)
    return np.concatenate([heads, np.array(leaders, np.int64)])


def kinds_of_live(blocks: Blocks, kinds: NDArray[np.int8], n_rows: int) -> NDArray[np.int8]:
    """(n_rows,) the kinds by row of the final live table; NOT_JUDGED where the block is younger than the stop."""
    result = np.full(n_rows, NOT_JUDGED, np.int8)
    judged = blocks.row >= 0
    result[blocks.row[judged]] = kinds[judged]
    return result
