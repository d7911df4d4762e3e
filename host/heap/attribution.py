"""Live blocks × evidence → the evidence of each block; and the weights of sampled blocks.

The live table decides what is held. Evidence only shows where a block was allocated:
- a block with evidence of its own (same sequence) is exact;
- any other block has the evidence of its stack key. If all evidence of the key unwinds to one stack, that is exact too;
  else the key is ambiguous: the block has the nearest earlier evidence and is approximate;
- a block whose key has no evidence is unattributed: counted, never dropped, never guessed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap.keys import find_sorted
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, FIRST_REGION_FUNCTION, Rows
from memleak_android.host.wire.session import SessionTracing

UNATTRIBUTED = -1
_BLOCKS_AT_ONCE = 1 << 20
# --all omits the stack of a key that holds a single block below this size (device/bpf/evidence.bpf.h).
SINGLE_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Attribution:
    """The evidence of each of n live blocks.

    evidence: (n,) index into the evidence references, UNATTRIBUTED = unattributed.
    is_own: (n,) True where that evidence was taken at this very allocation.
    """

    evidence: NDArray[np.int64]
    is_own: NDArray[np.bool_]


def attribute(live: Rows, evidence: Rows, parents: dict[int, int]) -> Attribution:
    """Joins live blocks (LIVE_ROW) with evidence (EVIDENCE_REFERENCE).

    parents: pid → the process it was forked from; a forked process holds blocks that its parent allocated,
    under the parent's stack keys.
    """
    chosen = _match_sequences(live["sequence"], evidence["sequence"])
    is_own = chosen != UNATTRIBUTED
    pids = live["pid"].astype(np.int64)
    for _ in range(len(parents) + 1):
        missing = np.flatnonzero(chosen == UNATTRIBUTED)
        if not len(missing) or not len(evidence):
            break
        chosen[missing] = _nearest_earlier(live[missing], pids[missing], evidence)
        forked = np.isin(pids, list(parents)) & (chosen == UNATTRIBUTED)
        if not forked.any():
            break
        pids[forked] = [parents[pid] for pid in pids[forked].tolist()]
    return Attribution(chosen, is_own)


def _match_sequences(wanted: NDArray[np.uint64], present: NDArray[np.uint64]) -> NDArray[np.int64]:
    order = np.argsort(present, kind="stable")
    index, is_found = find_sorted(present[order], wanted)
    result = np.full(len(wanted), UNATTRIBUTED, np.int64)
    is_found &= wanted != 0
    result[is_found] = order[index[is_found]]
    return result


def _nearest_earlier(live: Rows, pids: NDArray[np.int64], evidence: Rows) -> NDArray[np.int64]:
    """For each block the evidence of its (pid, key) with the highest sequence below its own, else the lowest above.

    Both are sorted together: the evidence of a block is then the last one before it in its group.
    """
    n = len(evidence)
    pid = np.concatenate([evidence["pid"].astype(np.int64), pids])
    key = np.concatenate([evidence["key"], live["key"]])
    sequence = np.concatenate([evidence["sequence"], live["sequence"]])
    order = np.lexsort((sequence, key, pid))
    is_evidence = order < n
    starts = np.ones(len(order), bool)
    starts[1:] = (key[order][1:] != key[order][:-1]) | (pid[order][1:] != pid[order][:-1])
    group = np.cumsum(starts)
    position = np.arange(len(order))
    before = np.maximum.accumulate(np.where(is_evidence, position, -1))
    after = np.minimum.accumulate(np.where(is_evidence, position, len(order))[::-1])[::-1]
    result = np.full(len(order), UNATTRIBUTED, np.int64)
    for candidate in (np.minimum(after, len(order) - 1), np.maximum(before, 0)):  # an earlier one wins
        fits = is_evidence[candidate] & (group[candidate] == group)
        result = np.where(fits, order[candidate], result)
    unsorted = np.empty_like(result)
    unsorted[order] = result
    return unsorted[n:]


def evidence_of_held_keys(live: Rows, attribution: Attribution, evidence: Rows) -> NDArray[np.int64]:
    """Indexes of all evidence to unwind: that of blocks, and all other of the keys that blocks share it by."""
    used = np.unique(attribution.evidence[attribution.evidence != UNATTRIBUTED])
    shared = np.unique(attribution.evidence[(attribution.evidence != UNATTRIBUTED) & ~attribution.is_own])
    groups = key_groups(evidence)
    return np.union1d(used, np.flatnonzero(np.isin(groups, groups[shared])))


def key_groups(rows: Rows, images: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """For each row the number of its (pid, key), or of its (pid, key, image): see AddressSpaces.images()."""
    columns = [rows["pid"].astype(np.int64), rows["key"].astype(np.int64)]
    if images is not None:
        columns.append(images)
    if not len(rows):
        return np.empty(0, np.int64)
    order = np.lexsort(columns)
    changes = np.zeros(len(rows), bool)
    for column in columns:
        changes[1:] |= np.diff(column[order]) != 0
    groups = np.empty(len(rows), np.int64)
    groups[order] = np.cumsum(changes)
    return groups


def ambiguous_evidence(
    groups: NDArray[np.int64], stacks: NDArray[np.int64], unwound: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """For each evidence: its key covers more than one stack.

    stacks: (n,) number of the stack of each evidence; only that of `unwound` (indexes) is known.
    """
    lowest = np.full(groups.max(initial=-1) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, groups[unwound], stacks[unwound])
    np.maximum.at(highest, groups[unwound], stacks[unwound])
    return np.asarray((lowest < highest)[groups])


def chunks(n_blocks: int) -> Iterator[slice]:
    """Slices of a table of live blocks, so that what is computed from a slice stays small."""
    for first in range(0, n_blocks, _BLOCKS_AT_ONCE):
        yield slice(first, min(first + _BLOCKS_AT_ONCE, n_blocks))


def sampling_weights(live: Rows) -> NDArray[np.float64]:
    """How many blocks each sampled block stands for: 1/p with p = 1 - exp(-size/N) (Poisson sampling of bytes).

    1 where sample_bytes is 0: such a block is recorded in any case.
    """
    n = live["sample_bytes"].astype(np.float64)
    size = np.maximum(live["size"].astype(np.float64), 1.0)
    sampled = n > 0
    p = np.where(sampled, -np.expm1(-size / np.where(sampled, n, 1.0)), 1.0)
    return np.asarray(1.0 / p)


def variances(live: Rows, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each block's contribution to a sum of bytes: s²(1-p)/p², in bytes²."""
    size = live["size"].astype(np.float64)
    return np.asarray(size * size * weight * (weight - 1.0))


def is_heap(live: Rows) -> NDArray[np.bool_]:
    """True for blocks of an allocator: neither regions nor handles of --pairs."""
    return np.asarray(live["function"] < FIRST_REGION_FUNCTION)


def is_region(live: Rows) -> NDArray[np.bool_]:
    """True for regions (mmap), which are not heap blocks."""
    function = live["function"]
    return np.asarray((function >= FIRST_REGION_FUNCTION) & (function < FIRST_PAIR_FUNCTION))


def select(
    live: Rows, now_ns: int, older_ns: int = 0, min_size: int = 0, max_size: int = 2**64 - 1
) -> NDArray[np.bool_]:
    """True for blocks within limits of age and size. Totals at the end are never limited.

    Without an age all are old enough, including those allocated while the snapshot was taken.
    """
    latest = max(0, now_ns - older_ns) if older_ns else 2**64 - 1
    old = live["timestamp_ns"].astype(np.uint64) <= np.uint64(latest)
    return np.asarray(old & (live["size"] >= np.uint64(min_size)) & (live["size"] <= np.uint64(max_size)))


def is_omitted(tracing: SessionTracing, live: Rows) -> NDArray[np.bool_]:
    """For each live block: if it has no stack, that is because none was requested.

    A block that lacks its stack for another reason (it is large, its key holds more blocks, it has no key) is a loss.
    """
    if not tracing.is_every_process:
        return np.zeros(len(live), bool)
    groups = key_groups(live)
    is_single = np.bincount(groups)[groups] == 1
    return np.asarray(is_single & (live["size"] < SINGLE_BLOCK_BYTES) & (live["key"] != 0))


def omission_notes(space: int, objects: int) -> list[str]:
    """The report's note about bytes and blocks whose stacks were omitted."""
    if not objects:
        return []
    why = f"each is the only block of its stack and smaller than {SINGLE_BLOCK_BYTES:,} bytes"
    return [
        f"{objects:,} blocks of {space:,} bytes have no stack because {why} (name its process by --pid for them)"
    ]
