"""Evidence records → samples for the unwinder: slices read back from the file, return probe trampolines undone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire import frame_chains, interrupted_stack, python_frames, sparse_stack, stack_tail
from memleak_android.host.wire.blocks import FIXUPS, Block, EvidenceFlag, Rows
from memleak_android.host.wire.frame_chains import SentChains
from memleak_android.host.wire.packed import has
from memleak_android.host.wire.payloads import EvidenceBatch, decode_evidence
from memleak_android.host.wire.python_frames import SentPython
from memleak_android.unwind.arch import Arch
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.trace import SampleBatch

BATCH_BYTES = 64 << 20  # stack bytes unwound at once: bounds the host's memory, whatever has survived

ReadBlock = Callable[[int], Block]


@dataclass(frozen=True, slots=True)
class Samples:
    """indexes: of the samples' references in the request. rows: their evidence (EVIDENCE). chains: by frame records. python: their frames in Python."""

    indexes: NDArray[np.int64]
    rows: Rows
    batch: SampleBatch
    chains: SentChains
    python: SentPython


def read_samples(
    references: Rows, spaces: NDArray[np.int32], read_block: ReadBlock, arch: Arch
) -> Iterator[Samples]:
    """The evidence of `references` (EVIDENCE_REFERENCE) in batches of at most about BATCH_BYTES.

    spaces: for each reference the index of its address space.
    """
    order = np.lexsort((references["record"], references["block_offset"]))
    offsets = references["block_offset"][order]
    bounds = [0, *(np.flatnonzero(np.diff(offsets)) + 1).tolist(), len(order)]
    gathered: list[tuple[NDArray[np.int64], EvidenceBatch, NDArray[np.int64]]] = []
    size = 0
    for first, end in pairwise(bounds):
        if first == end:
            continue
        indexes = order[first:end]
        evidence = decode_evidence(read_block(int(offsets[first])).payload)
        records = references["record"][indexes].astype(np.int64)
        gathered.append((indexes, evidence, records))
        size += int(_lengths(evidence, records).sum())
        if size >= BATCH_BYTES:
            yield _join(gathered, spaces, arch)
            gathered, size = [], 0
    if gathered:
        yield _join(gathered, spaces, arch)


def _join(
    gathered: list[tuple[NDArray[np.int64], EvidenceBatch, NDArray[np.int64]]],
    spaces: NDArray[np.int32],
    arch: Arch,
) -> Samples:
    indexes = np.concatenate([part for part, _, _ in gathered])
    rows = np.concatenate([evidence.rows[records] for _, evidence, records in gathered])
    registers = np.zeros((len(rows), len(arch.registers)), np.uint64)
    known = np.zeros(registers.shape, bool)
    at = 0
    for _, evidence, records in gathered:
        width = min(evidence.registers.shape[1], registers.shape[1])
        registers[at : at + len(records), :width] = evidence.registers[records, :width]
        known[at : at + len(records), :width] = evidence.known[records, :width]
        at += len(records)
    length = np.concatenate([_lengths(evidence, records) for _, evidence, records in gathered])
    offset = np.concatenate([[0], np.cumsum((length + 7) & ~7)]).astype(np.int64)
    stack = np.zeros(offset[-1], np.uint8)
    at = 0
    for _, evidence, records in gathered:
        _fill(stack, offset[at : at + len(records)], evidence, records)
        at += len(records)
    _undo_trampolines(stack, offset[:-1], rows["stack_address"], rows, length)
    batch = SampleBatch(
        arch=arch,
        registers=registers,
        known=known,
        stack_address=rows["stack_address"].astype(np.uint64),
        stack_offset=offset[:-1],
        stack_length=length,
        stack_bytes=stack,
        space=spaces[indexes],
        at_return=has(rows, EvidenceFlag.AT_RETURN),
        extra_memory=_second_stacks(gathered, rows),
    )
    chains = [
        frame_chains.read(evidence.data, evidence.chain_offset[records]) for _, evidence, records in gathered
    ]
    python = [
        python_frames.read(evidence.data, evidence.python_offset[records])
        for _, evidence, records in gathered
    ]
    return Samples(indexes, rows, batch, frame_chains.join(chains), python_frames.join(python))


def _fill(
    stack: NDArray[np.uint8], offset: NDArray[np.int64], evidence: EvidenceBatch, records: NDArray[np.int64]
) -> None:
    """Copies the slices of records to their offsets: whole slices, and the known words of sparse ones."""
    rows = evidence.rows[records]
    sparse = has(rows, EvidenceFlag.STACK_SPARSE)
    whole = np.flatnonzero(~sparse)
    starts, sizes = evidence.stack_offset[records[whole]].tolist(), rows["stack_bytes"][whole].tolist()
    for to, start, size in zip(offset[whole].tolist(), starts, sizes, strict=True):
        stack[to : to + size] = evidence.data[start : start + size]
    few = np.flatnonzero(sparse)
    words = sparse_stack.read(evidence.data, evidence.stack_offset, records[few])
    stack.view(np.uint64)[offset[few][words.owner] // 8 + words.slot] = words.value

    above = evidence.above_offset[records]
    longer = np.flatnonzero(above >= 0)
    begins = (offset[longer] + rows["stack_bytes"][longer]) // 8
    reach = stack_tail.reach(evidence.data, above[longer]) // 8
    for begin, n in zip(begins.tolist(), reach.tolist(), strict=True):
        stack.view(np.uint64)[begin : begin + n] = stack_tail.UNKNOWN
    more = stack_tail.read(evidence.data, above[longer])
    stack.view(np.uint64)[begins[more.owner] + more.slot] = more.value


def _lengths(evidence: EvidenceBatch, records: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of each stack: its slice and the words above it that were sent."""
    more = stack_tail.reach(evidence.data, evidence.above_offset[records])
    return np.asarray(evidence.rows["stack_bytes"][records].astype(np.int64) + more)


def _second_stacks(
    gathered: list[tuple[NDArray[np.int64], EvidenceBatch, NDArray[np.int64]]], rows: Rows
) -> list[MemoryRegions | None] | None:
    """The stack that each record's signal handler interrupted; None if no record has one."""
    sent = [
        None if start < 0 else interrupted_stack.read(evidence.data, start)
        for _, evidence, records in gathered
        for start in evidence.interrupted_offset[records].tolist()
    ]
    has = np.flatnonzero([each is not None for each in sent])
    if not len(has):
        return None
    stacks = [each for each in sent if each is not None]
    length = np.array([len(data) for _, data in stacks], np.int64)
    offset = np.cumsum(length) - length
    flat = np.concatenate([data for _, data in stacks])
    address = np.array([address for address, _ in stacks], np.uint64)
    _undo_trampolines(flat, offset, address, rows[has], length)
    found: list[MemoryRegions | None] = [None] * len(rows)
    for i, at, begin, size in zip(
        has.tolist(), address.tolist(), offset.tolist(), length.tolist(), strict=True
    ):
        found[i] = MemoryRegions([(at, memoryview(flat.data)[begin : begin + size])])
    return found


def _undo_trampolines(
    stack: NDArray[np.uint8],
    offset: NDArray[np.int64],
    address: NDArray[np.uint64],
    rows: Rows,
    length: NDArray[np.int64],
) -> None:
    """Restores the return addresses that return probes replaced in the slices, which begin at `address`."""
    for i in range(FIXUPS):
        fixup = rows["fixups"][:, i]
        slot = (fixup["slot_address"] - address).astype(np.int64)
        fits = (i < rows["n_fixups"]) & (slot >= 0) & (slot + 8 <= length)
        values = np.ascontiguousarray(fixup["value"][fits]).view(np.uint8).reshape(-1, 8)
        stack[(offset + slot)[fits][:, None] + np.arange(8)] = values
