"""The baseline: stacks by frame records alone, without unwind information. What CFI finds of them is in batch.py.

A record is { caller's frame pointer, return address } where the frame pointer points (System V psABI x86-64 §3.2.2,
AAPCS64 §6.4.6; on 32-bit arm as clang lays it out, r11 in ARM code, r7 in Thumb code). A frame pointer is believed as
long as it is a word's address above the frame that led to it and inside the slice; whatever else a function keeps in
the register leads astray within those bounds. device/preload/stacks/frame_chain.c walks the same way inside the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.maps import AddressSpace
from memleak_android.unwind.trace import Ints, Method, SampleBatch, TraceBatch, TraceEnd, Words

MAX_FRAMES = 256  # ML_FRAME_CHAIN_MAX of device/wire.h


@dataclass(frozen=True, slots=True)
class Chains:
    """The callers of n samples' innermost frames: counts of sample i, then all addresses, innermost first.

    sp: stack pointers of those frames, 0 where they are not known. end: TraceEnd by sample.
    """

    counts: Ints
    addresses: Words
    sp: Words
    end: NDArray[np.uint8]


class ChainWalk:
    """The chains of the samples' slices. All samples step together, one record per round.

    masks: by sample, its signature mask.
    """

    def __init__(self, samples: SampleBatch, masks: Words) -> None:
        arch = samples.arch
        self._samples, self._masks, self._word = samples, masks, np.uint64(arch.word_bytes)
        self._saved, self._back, self._span = (np.uint64(n) for n in arch.frame_record)
        n = len(samples)
        self._end = np.full(n, TraceEnd.ROOT, np.uint8)
        self._high = samples.stack_address + samples.stack_length.astype(np.uint64)
        slots = _chain_slots(arch, samples.registers[:, arch.pc])
        self._frame = samples.registers[np.arange(n), slots]
        self._low = samples.registers[:, arch.sp].copy()
        self._from = samples.registers[:, arch.pc].copy()
        self._live = np.arange(n)
        self._stop(~samples.known[np.arange(n), slots], TraceEnd.NO_UNWIND_ROW)

    def run(self) -> Chains:
        owners, addresses, sps = [], [], []
        for level in range(MAX_FRAMES + 1):
            self._refuse(level == MAX_FRAMES)
            if not len(self._live):
                break
            owner, address, sp = self._read()
            owners.append(owner)
            addresses.append(address)
            sps.append(sp)
        owner = np.concatenate([np.empty(0, np.int64), *owners])
        order = np.argsort(owner, kind="stable")
        return Chains(
            np.bincount(owner, minlength=len(self._samples)),
            np.concatenate([np.empty(0, np.uint64), *addresses])[order],
            np.concatenate([np.empty(0, np.uint64), *sps])[order],
            self._end,
        )

    def _stop(self, where: NDArray[np.bool_], end: TraceEnd) -> None:
        """Ends the chains of those live samples."""
        self._end[self._live[where]] = end
        self._live = self._live[~where]

    def _refuse(self, is_full: bool) -> None:
        """Ends the chains whose next record is not to be read, in the order of the reasons."""
        pc = self._samples.arch.pc
        if self._samples.arch.chain_slots:  # the next record would be in another register
            start = self._samples.registers[self._live, pc]
            self._stop(((start ^ self._from[self._live]) & np.uint64(1)) != 0, TraceEnd.NO_UNWIND_ROW)
        self._stop(self._frame[self._live] == 0, TraceEnd.ROOT)
        if is_full:
            self._stop(np.ones(len(self._live), bool), TraceEnd.MAX_FRAMES)
        frame, low = self._frame[self._live], self._low[self._live]
        self._stop((frame < low) | (frame % self._word != 0), TraceEnd.NO_PROGRESS)
        frame, high = self._frame[self._live], self._high[self._live]
        beyond = (frame > high) | (high - np.minimum(frame, high) < self._span)
        self._stop(beyond | (frame < self._samples.stack_address[self._live]), TraceEnd.STACK_TRUNCATED)

    def _read(self) -> tuple[Ints, Words, Words]:
        """Owner, return address and stack pointer of the callers that the records name."""
        live = self._live
        frame = self._frame[live]
        address = self._word_at(live, frame + self._back) & ~self._masks[live]
        saved = self._word_at(live, frame + self._saved)
        found = address != 0
        self._stop(~found, TraceEnd.ROOT)
        live = live[found]
        self._frame[live], self._from[live] = saved[found], address[found]
        self._low[live] = frame[found] + self._span
        return live, address[found], self._low[live]

    def _word_at(self, live: Ints, address: Words) -> Words:
        at = self._samples.stack_offset[live] + (address - self._samples.stack_address[live]).astype(np.int64)
        width = int(self._word)
        words = self._samples.stack_bytes[at[:, None] + np.arange(width)]
        return np.ascontiguousarray(words).view(f"<u{width}").reshape(-1).astype(np.uint64)


def _chain_slots(arch: Arch, pcs: Words) -> Ints:
    """The register that points to the first frame record, by sample."""
    if not arch.chain_slots:
        return np.full(len(pcs), arch.fp, np.int64)
    return np.array(arch.chain_slots, np.int64)[(pcs & np.uint64(1)).astype(np.int64)]


def traces_of(samples: SampleBatch, chains: Chains, masks: Words, by: Method = Method.FP) -> TraceBatch:
    """Traces of the samples' innermost frames followed by their chains; by: the method of the chains."""
    n, arch = len(samples), samples.arch
    offsets = np.concatenate([[0], np.cumsum(chains.counts + 1)]).astype(np.int64)
    first = np.zeros(offsets[-1], bool)
    first[offsets[:-1]] = True
    address, sp = np.empty(len(first), np.uint64), np.empty(len(first), np.uint64)
    address[first], address[~first] = samples.registers[:, arch.pc] & ~masks, chains.addresses
    sp[first], sp[~first] = samples.registers[:, arch.sp], chains.sp
    is_return = np.ones(len(first), np.bool_)
    is_return[first] = samples.at_return
    method = np.where(first, np.uint8(Method.REGISTERS), np.uint8(by))
    assert len(chains.end) == n
    return TraceBatch(offsets, address, sp, is_return, method, chains.end.copy())


def within_code(traces: TraceBatch, space: NDArray[np.int32], spaces: Sequence[AddressSpace]) -> TraceBatch:
    """Cuts each trace before the first caller that is not a code address: it did not come from a frame record.

    space: index in `spaces`, by trace.
    """
    counts = np.diff(traces.offsets)
    owner = np.repeat(np.arange(len(traces)), counts)
    lookup = np.empty(len(owner), [("space", "<i8"), ("address", "<u8")])
    lookup["space"], lookup["address"] = space[owner], traces.address - traces.is_return
    distinct, inverse = np.unique(lookup, return_inverse=True)
    is_code = np.array([_is_code(spaces[number], address) for number, address in distinct.tolist()], bool)
    level = np.arange(len(owner)) - traces.offsets[owner]
    astray = ~is_code[inverse] & (level > 0)
    kept = counts.copy()
    np.minimum.at(kept, owner[astray], level[astray])
    keep = level < kept[owner]
    end = np.where(kept < counts, np.uint8(TraceEnd.NO_MAPPING), traces.end)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    return TraceBatch(
        offsets, traces.address[keep], traces.sp[keep], traces.is_return[keep], traces.method[keep], end
    )


def _is_code(space: AddressSpace, address: int) -> bool:
    mapping = space.find(address)
    return mapping is not None and mapping.is_executable
