"""Chains of frame records in evidence (struct ml_frame_chain of device/wire.h), and their stacks.

A chain follows the stack bytes or the sparse words: number of frames, end, return addresses.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import FRAME_CHAIN, FRAME_CHAIN_MAX, EvidenceFlag, Rows
from memleak_android.host.wire.packed import WORD, Ints, counted_fault, has, ranges, structures, words
from memleak_android.unwind.maps import AddressSpace
from memleak_android.unwind.trace import Method, SampleBatch, TraceBatch, TraceEnd
from memleak_android.unwind.walk import frame_chain
from memleak_android.unwind.walk.frame_chain import Chains

_HEAD = FRAME_CHAIN.itemsize


class SentChains(NamedTuple):
    """The chains of n records as the target walked them. A record without a chain has no frames.

    is_sent, counts, end: (n,). addresses: of all chains, concatenated.
    """

    is_sent: NDArray[np.bool_]
    counts: Ints
    end: NDArray[np.uint8]
    addresses: NDArray[np.uint64]


def offsets(data: NDArray[np.uint8], rows: Rows, stack_offset: Ints) -> Ints:
    """Byte offset in `data` of each record's chain, -1 = it has none. Sparse words must have been checked."""
    return np.where(has(rows, EvidenceFlag.FRAME_CHAIN), _stack_ends(data, rows, stack_offset), -1)


def ends(data: NDArray[np.uint8], rows: Rows, stack_offset: Ints) -> Ints:
    """Byte offset in `data` behind each record's stack and its chain, which fault() must have checked."""
    end = _stack_ends(data, rows, stack_offset)
    sent = has(rows, EvidenceFlag.FRAME_CHAIN)
    end[sent] += _HEAD + WORD * structures(data, end[sent], FRAME_CHAIN)["n_frames"].astype(np.int64)
    return end


def _stack_ends(data: NDArray[np.uint8], rows: Rows, stack_offset: Ints) -> Ints:
    sparse = has(rows, EvidenceFlag.STACK_SPARSE)
    size = (rows["stack_bytes"].astype(np.int64) + 7) & ~7
    n_words = np.zeros(len(rows), np.int64)
    n_words[sparse] = words(data)[stack_offset[sparse] // WORD]
    size[sparse] = WORD + n_words[sparse] * WORD + ((2 * n_words[sparse] + 7) & ~7)
    return np.asarray(stack_offset + size)


def fault(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> int | None:
    """The first record whose chain is not within its bytes. starts: from offsets(); ends: of the records."""
    return counted_fault(data, starts, ends, FRAME_CHAIN, WORD, FRAME_CHAIN_MAX)


def read(data: NDArray[np.uint8], starts: Ints) -> SentChains:
    """The chains that begin at `starts`, which fault() must have checked."""
    is_sent = starts >= 0
    counts, end = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.uint8)
    heads = structures(data, starts[is_sent], FRAME_CHAIN)
    counts[is_sent] = heads["n_frames"]
    end[is_sent] = np.minimum(heads["end"], max(TraceEnd))
    return SentChains(is_sent, counts, end, words(data)[ranges((starts + _HEAD) // WORD, counts)])


def join(pieces: Sequence[SentChains]) -> SentChains:
    return SentChains(*map(np.concatenate, zip(*pieces, strict=True)))


def traces(
    samples: SampleBatch, sent: SentChains, spaces: Sequence[AddressSpace], method: Method = Method.FP
) -> TraceBatch:
    """The stacks by frame records alone: the chain that was sent, else walked in the slice. method: of the callers."""
    used = np.unique(samples.space)
    masks = np.zeros(int(samples.space.max(initial=0)) + 1, np.uint64)
    masks[used] = [spaces[number].signature_mask(samples.arch) for number in used.tolist()]
    own = masks[samples.space]
    chains = _merged(sent, frame_chain.ChainWalk(samples, own).run())
    whole = frame_chain.traces_of(samples, chains, own, method)
    return frame_chain.within_code(whole, samples.space, spaces)


def _merged(sent: SentChains, walked: Chains) -> Chains:
    """The sent chains, and the walked ones where none was sent."""
    counts = np.where(sent.is_sent, sent.counts, walked.counts)
    is_sent = np.repeat(sent.is_sent, counts)
    takes = ~np.repeat(sent.is_sent, walked.counts)
    addresses, sp = np.zeros(len(is_sent), np.uint64), np.zeros(len(is_sent), np.uint64)
    addresses[is_sent] = sent.addresses
    addresses[~is_sent], sp[~is_sent] = walked.addresses[takes], walked.sp[takes]
    return Chains(counts, addresses, sp, np.where(sent.is_sent, sent.end, walked.end))
