"""What is held and by which stacks: live table × evidence, unwound, or read from a finished recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import RecordingError
from memleak_android.host.heap import attribution as heap
from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.heap.top_keys import first_evidence, top_keys
from memleak_android.host.profile.profile import FpAgreement, LeakKind
from memleak_android.host.stacks import fp_agreement
from memleak_android.host.stacks.address_spaces import AddressSpaces, ProcessSpace
from memleak_android.host.stacks.columns import frame_rows, trace_rows
from memleak_android.host.stacks.kernel_stacks import KernelStacks, kernel_modules
from memleak_android.host.stacks.modules import ModuleFile, ModuleFiles
from memleak_android.host.stacks.samples import ReadBlock, Samples, read_samples
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire import frame_chains, stack_tail
from memleak_android.host.wire.blocks import (
    KEY_ROW,
    LIVE_ROW,
    NO_TRACE,
    SITE_LEAK_MASK,
    SITE_LEAK_SHIFT,
    SITE_ROW,
    ArchNumber,
    EvidenceFlag,
    KeyFlag,
    Rows,
    SiteFlag,
)
from memleak_android.unwind.arch import Arch, arch_by_name
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.maps import Mapping
from memleak_android.unwind.trace import Method, TraceBatch
from memleak_android.unwind.walk.batch import BatchUnwinder

EMPTY_SNAPSHOT = Snapshot(0, 0, np.empty(0, LIVE_ROW), np.empty(0, KEY_ROW), is_whole=False)


# A key with one of these says of blocks without evidence of their own only what is likely.
_UNSURE = np.uint64(KeyFlag.AMBIGUOUS | KeyFlag.PARTIAL)


@dataclass(frozen=True, slots=True)
class Survivors:
    """What is held at a snapshot, and by which stacks.

    trace: for each live block a number in `stacks`, heap.UNATTRIBUTED = unattributed. is_approximate: likewise by block.
    fp_agreement: of `--unwind both`. leak_kinds: by block, of `--reachability` (host/analysis/reachability.py).
    """

    snapshot: Snapshot
    trace: NDArray[np.int64]
    is_approximate: NDArray[np.bool_]
    stacks: StackTable
    files: Sequence[ModuleFile]
    fp_agreement: FpAgreement | None = None
    leak_kinds: NDArray[np.int8] | None = None


@dataclass(frozen=True, slots=True)
class _Modules:
    """Implements unwind's ModuleSource."""

    files: ModuleFiles
    spaces: Sequence[ProcessSpace]

    def module(self, space: int, mapping: Mapping) -> Module | None:
        number = self.files.number(self.spaces[space].pid, mapping)
        return None if number is None else self.files.files[number].module


class Analysis:
    """Unwinds a capture whose evidence lies in a file. What was unwound for one snapshot is kept for the next."""

    def __init__(self, capture: Capture, read_block: ReadBlock, files: ModuleFiles, *, jobs: int = 1) -> None:
        self._jobs = jobs
        self._capture = capture
        self._read_block = read_block
        self._files = files
        self._stacks = StackTable()
        self._traces: dict[tuple[int, int], int] = {}  # by sequence and image
        self._comparison = fp_agreement.Comparison()
        self._kernel = KernelStacks(capture.kernel_symbols, files)

    def survivors(self, with_past: bool = False, of: Capture | None = None) -> Survivors:
        """Of the capture's last whole snapshot. with_past: its stacks are also those of blocks that are gone, of the
        keys that held most at the peak and of those that allocated most. of: the capture as it was (Capture.frozen).
        """
        capture = of or self._capture
        snapshot, references = capture.snapshot or EMPTY_SNAPSHOT, capture.evidence()
        spaces = AddressSpaces(capture.maps, capture.mappings, capture.processes)
        attribution = heap.attribute(snapshot.live, references, spaces.parents)
        wanted = heap.evidence_of_held_keys(snapshot.live, attribution, references)
        if with_past:
            past = top_keys(capture.high_water.at, snapshot.keys)
            wanted = np.union1d(wanted, first_evidence(references, past))
        images = spaces.images(references["pid"], references["timestamp_ns"])
        traces = np.full(len(references), heap.UNATTRIBUTED, np.int64)
        traces[wanted] = self._unwind(
            references[wanted], references["timestamp_ns"][wanted], images[wanted], spaces
        )
        trace = np.full(len(snapshot.live), heap.UNATTRIBUTED, np.int64)
        is_approximate = np.zeros(len(trace), bool)
        found = np.flatnonzero(attribution.evidence != heap.UNATTRIBUTED)
        speaks = attribution.evidence[found]
        trace[found] = traces[speaks]
        is_approximate[found] = self._ambiguous(references, images, wanted, traces, snapshot)[speaks]
        is_approximate &= ~attribution.is_own
        shared = found[~attribution.is_own[found]]
        self._follow_images(shared, snapshot.live, references[attribution.evidence[shared]], spaces, trace)
        agreement = self._comparison.result() if self._way == "both" else None
        return Survivors(snapshot, trace, is_approximate, self._stacks, self._files.files, agreement)

    @property
    def _way(self) -> str:
        """By which the stacks of this session are walked: cfi, fp or both."""
        return self._capture.session.tracing.unwind_mode

    def _follow_images(
        self,
        blocks: NDArray[np.int64],
        live: Rows,
        references: Rows,
        spaces: AddressSpaces,
        trace: NDArray[np.int64],
    ) -> None:
        """Corrects `trace` for blocks allocated when other code stood at the addresses of their key.

        A key stands for addresses. Where a library was closed and another opened at its place since the evidence,
        the same evidence is unwound once more, with the mappings of the block's time. references: (blocks,).
        """
        times = live["timestamp_ns"][blocks]
        then = spaces.images(references["pid"], times)
        moved = np.flatnonzero(then != spaces.images(references["pid"], references["timestamp_ns"]))
        if not len(moved):
            return
        pairs = np.stack([references["sequence"][moved].astype(np.int64), then[moved]], axis=1)
        _, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        chosen = moved[first]
        numbers = self._unwind(references[chosen], times[chosen], then[chosen], spaces)
        trace[blocks[moved]] = numbers[inverse.reshape(-1)]

    def _ambiguous(
        self,
        references: Rows,
        images: NDArray[np.int64],
        wanted: NDArray[np.int64],
        traces: NDArray[np.int64],
        snapshot: Snapshot,
    ) -> NDArray[np.bool_]:
        """For each evidence: its key covers more than one stack, by what was unwound or by the target's own word."""
        stacks = np.full(len(references), heap.UNATTRIBUTED, np.int64)
        stacks[wanted] = self._stacks.stack_of_trace[traces[wanted]]
        found = heap.ambiguous_evidence(heap.key_groups(references, images), stacks, wanted)
        declared = snapshot.keys["key"][(snapshot.keys["flags"] & _UNSURE) != 0]
        return np.asarray(found | np.isin(references["key"], declared))

    def _unwind(
        self,
        references: Rows,
        times_ns: NDArray[np.uint64],
        images: NDArray[np.int64],
        spaces: AddressSpaces,
    ) -> NDArray[np.int64]:
        """The trace of each reference, with the mappings of its process at `times_ns` (of the image `images`)."""
        names = list(zip(references["sequence"].tolist(), images.tolist(), strict=True))
        new = np.array([i for i, name in enumerate(names) if name not in self._traces], np.int64)
        space = spaces.index(references["pid"][new], times_ns[new])
        if len(new):
            modules = _Modules(self._files, spaces.spaces)
            unwinder = BatchUnwinder(spaces.spaces, modules, jobs=self._jobs)
            for samples in read_samples(references[new], space, self._read_block, arch_of(self._capture)):
                traces, frames = self._walk(samples, unwinder, spaces.spaces)
                numbers = range(len(self._stacks), len(self._stacks) + len(traces))
                self._stacks.append(trace_rows(samples.rows, traces), frames)
                asked = new[samples.indexes].tolist()
                self._traces.update(zip((names[i] for i in asked), numbers, strict=True))
        return np.array([self._traces[name] for name in names], np.int64)

    def _walk(
        self, samples: Samples, unwinder: BatchUnwinder, spaces: Sequence[ProcessSpace]
    ) -> tuple[TraceBatch, Rows]:
        """The traces of the samples and their frames (FRAME_ROW); of `both` those by CFI, and the comparison is added."""
        batch, way = samples.batch, self._way
        if (samples.rows["flags"] & np.uint16(EvidenceFlag.CHAIN_IS_CFI)).any():  # then all are: linked in
            traces = frame_chains.traces(batch, samples.chains, spaces, Method.EH_FRAME)
            return traces, frame_rows(traces, batch.space, spaces, self._files)
        by_records = frame_chains.traces(batch, samples.chains, spaces) if way in ("fp", "both") else None
        traces = by_records if by_records is not None and way == "fp" else unwinder.unwind(batch)
        boundary = batch.stack_address + samples.rows["stack_bytes"].astype(np.uint64)
        traces = stack_tail.settled(traces, samples.rows, boundary)
        frames = frame_rows(traces, batch.space, spaces, self._files)
        if (samples.rows["flags"] & np.uint16(EvidenceFlag.CHAIN_IS_KERNEL)).any():  # then all are
            return self._kernel.join(samples, traces, frames)
        if by_records is not None and way == "both":
            sparse = (samples.rows["flags"] & np.uint16(EvidenceFlag.STACK_SPARSE)) != 0
            is_judge = samples.chains.is_sent | ~sparse
            self._comparison.add(traces, by_records, is_judge, frames, self._files.files)
        return traces, frames


def arch_of(capture: Capture) -> Arch:
    """The architecture of the target; raises RecordingError where the capture does not tell one we know."""
    number = int(capture.hello["arch"]) if capture.hello is not None else 0
    name = ArchNumber(number).name.lower() if number in set(ArchNumber) else f"number {number}"
    arch = arch_by_name(name)
    if arch is None:
        raise RecordingError(f"unsupported architecture: {name}", "use a newer memleak-android")
    return arch


def recorded_survivors(capture: Capture, open_module: Callable[[str, str], ModuleFile]) -> Survivors:
    """Of a finished recording: stacks are read, not unwound. open_module: path and build-id → module."""
    snapshot = capture.snapshot or EMPTY_SNAPSHOT
    stacks, sites = capture.stacks, _sites_of(snapshot.live, capture.take_sites())
    has_stack = (sites["trace"] != NO_TRACE) & (sites["trace"] < len(stacks))
    trace = np.where(has_stack, sites["trace"].astype(np.int64), heap.UNATTRIBUTED)
    is_approximate = has_stack & ((sites["flags"] & np.uint32(SiteFlag.APPROXIMATE)) != 0)
    leaks = (sites["flags"] >> np.uint32(SITE_LEAK_SHIFT)) & np.uint32(SITE_LEAK_MASK)
    leak_kinds = np.where(leaks <= len(LeakKind), leaks, 0).astype(np.int8) - np.int8(1)
    kernel = kernel_modules(capture.kernel_symbols)
    names = [(str(module.get("path", "")), str(module.get("build_id", ""))) for module in capture.modules]
    files = [kernel.get(path) or open_module(path, build_id) for path, build_id in names]
    agreement = fp_agreement.read(capture.session.findings.fp_agreement)
    known = leak_kinds if (leak_kinds >= 0).any() else None
    return Survivors(snapshot, trace, is_approximate, stacks, files, agreement, known)


def _sites_of(live: Rows, sites: Rows) -> Rows:
    """The SITE_ROW of each live block, by sequence number; of one that has none it says so.

    The writer has them in the order of the blocks: then nothing is to be sorted.
    """
    if len(sites) == len(live) and (sites["sequence"] == live["sequence"]).all():
        return sites
    found = np.zeros(len(live), SITE_ROW)
    found["trace"] = NO_TRACE
    if len(sites):
        order = np.argsort(sites["sequence"], kind="stable")
        sequences = sites["sequence"][order]
        place = np.minimum(np.searchsorted(sequences, live["sequence"]), len(sites) - 1)
        is_there = sequences[place] == live["sequence"]
        found[is_there] = sites[order[place[is_there]]]
    return found
