"""Inline hooks for functions of --pairs in a running process: each leads over a stub to the shim's common entry.

The moved code of a file's functions has a room near that file, chosen by the pair files' contents. A thread may still run
moved code of an earlier session, so a repeated session finds the same room, and another session a different one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.tracers.agent.session_options import (
    AllocatorChoice,
    CodePatcher,
    PairPlan,
    PairPlanner,
    PatchSite,
    ProbedFile,
)
from memleak_android.host.tracers.inline.heap import HEAP_SLOTS, no_heap_lines, plan_inline
from memleak_android.host.tracers.inline.landings import Landing
from memleak_android.host.tracers.inline.patch_plan import (
    TRAMPOLINE_BYTES,
    FunctionCode,
    PatchPlan,
    plan_patch,
)
from memleak_android.host.tracers.inline.target import (
    ROOM_SLOTS,
    HookedProcess,
    MappedFile,
    Shim,
    mapped_file,
    patch_line,
    slot_line,
)
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.function_extents import FunctionExtents
from memleak_android.host.tracers.probes.placement import FUNCTION_BYTES_MAX, jumps_from_outside
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, STOP, Rows
from memleak_android.unwind.elf_headers import Segment

_ENTRY, _ORIGINALS, _TELLERS = "memleak_pair_moved", "memleak_pair_originals", "memleak_pair_size_functions"
_WORD = 8
_ALIGNMENT = 16  # of functions, by compilers' default; padding follows a shorter one
_NEAR_BYTES = 1 << 20  # from a file's first code: within reach of a jump


@dataclass(slots=True)
class PairPatches:
    """Implements CodePatcher.

    digest: of the pair files' contents.
    patched: addresses of functions that already have hooks.
    stops: of the process's threads, rows of STOP.
    """

    process: HookedProcess
    digest: int
    patched: frozenset[int] = frozenset()
    stops: Rows = field(default_factory=lambda: np.empty(0, STOP))
    _shim: Shim | None = None
    _files: dict[str, _PatchedFile] = field(default_factory=dict)
    _code: dict[tuple[str, int], FunctionCode] = field(default_factory=dict)
    _refused: dict[str, TargetError] = field(default_factory=dict)

    def look_at(self, sites: Sequence[PatchSite]) -> None:
        by_text: dict[tuple[str, Segment], list[PatchSite]] = defaultdict(list)
        for site in map(_sized, dict.fromkeys(sites)):
            text = site.elf.text_segment(site.file_offset)
            if text is not None and site.elf.machine in PROBED_ARCHES:
                by_text[site.file.path, text].append(site)
        for (path, text), inside in by_text.items():
            try:
                self._read(path, text, inside)
            except TargetError as reason:
                self._refused[path] = reason

    def check(self, site: PatchSite) -> None:
        self._plan(site, 0)

    def lines(
        self, number: int, site: PatchSite, teller: tuple[ProbedFile, ElfFile, int] | None
    ) -> list[str]:
        index = number - FIRST_PAIR_FUNCTION
        plan, shim = self._plan(site, index), self.shim
        size_function = 0
        if teller is not None:
            file, elf, vaddr = teller
            size_function = mapped_file(self.process, file.path, elf).address(vaddr)
        words = ((_ORIGINALS, plan.original), (_TELLERS, size_function))
        slots = [slot_line(shim.data(name)[0] + index * _WORD, value) for name, value in words]
        return [*slots, patch_line(plan)]

    @property
    def shim(self) -> Shim:
        if self._shim is None:
            self._shim = Shim.of(self.process)
        return self._shim

    def _plan(self, site: PatchSite, index: int) -> PatchPlan:
        code = self._code.get((site.file.path, site.file_offset))
        if site.file.path in self._refused:
            reason = self._refused[site.file.path]
            raise TargetError(f"{site.name} cannot be patched: {reason.message}", reason.hint)
        if code is None:
            raise TargetError(f"{site.name} is code that cannot be patched", "use --tracer bpf")
        if code.address in self.patched:
            raise TargetError(
                f"{site.name} belongs to the heap, which has a hook there", "drop the set malloc"
            )
        if not code.code:
            raise TargetError(f"{site.name} cannot be patched: its end is unknown", "use --tracer bpf")
        trampoline = self._files[site.file.path].room + (HEAP_SLOTS + index) * TRAMPOLINE_BYTES
        return plan_patch(code, Landing(self.shim.function(_ENTRY), index), trampoline)

    def _read(self, path: str, text: Segment, sites: Sequence[PatchSite]) -> None:
        elf = sites[0].elf
        file = self._files.get(path) or self._enter(path, elf, text)
        self._files[path] = file
        code = [elf.slice(site.file_offset, min(site.size, FUNCTION_BYTES_MAX + 1)) for site in sites]
        padding = [_padding(elf, text, site) for site in sites]
        starts = [site.file_offset - text.file_offset for site in sites]
        ranges = [
            (start, start + site.size + len(more))
            for start, site, more in zip(starts, sites, padding, strict=True)
        ]
        view = elf.view(text.file_offset, text.file_bytes)
        jumped_to = jumps_from_outside(PROBED_ARCHES[elf.machine], view, ranges)
        surroundings = file.mapped.surroundings(self.process.status())
        for site, start, bytes_, more, hits in zip(sites, starts, code, padding, jumped_to, strict=True):
            address = file.mapped.address(text.vaddr + start)
            self._code[path, site.file_offset] = FunctionCode(
                site.name, elf.machine, address, bytes_, frozenset(hits), surroundings, more
            )

    def _enter(self, path: str, elf: ElfFile, text: Segment) -> _PatchedFile:
        mapped = mapped_file(self.process, path, elf)
        near = mapped.address(text.vaddr) + self.digest % min(text.file_bytes, _NEAR_BYTES)
        reservation = self.process.reserve(near)
        self.stops = np.concatenate([self.stops, reservation.stops])
        return _PatchedFile(mapped, self.shim.room(near, reservation))


@dataclass(frozen=True, slots=True)
class InlineSession:
    """lines: the agent's configuration for the heap; those of --pairs follow.
    allocator: its file, "" without the heap.
    notes: for -v.
    unplaced: sentences about the heap's functions that are not patched.
    stops: of the process's threads so far, rows of STOP.
    """

    lines: list[str]
    allocator: str
    notes: tuple[str, ...]
    unplaced: tuple[str, ...]
    stops: Rows
    pairs: PairPlan | None


def plan_session(
    process: HookedProcess,
    planner: PairPlanner | None,
    choice: AllocatorChoice,
    allocator: Callable[[], LoadedObject],
    plan_pairs: Callable[[PairPlanner, CodePatcher], PairPlan],
) -> InlineSession:
    """Plans a session. Raises TargetError, and TracerError for what inline hooks cannot do.

    allocator: finds the allocator if the heap is traced.
    plan_pairs: plans --pairs on the files that the process has loaded.
    """
    heap = plan_inline(process, allocator(), choice) if choice.is_traced else None
    patched = heap.functions if heap else frozenset()
    lines, notes, stops = (heap.lines, heap.notes, heap.stops) if heap else ([], (), np.empty(0, STOP))
    unplaced = heap.unplaced if heap else ()
    path = heap.allocator.path if heap else ""
    if planner is None:
        return InlineSession(lines, path, notes, unplaced, stops, None)
    patcher = PairPatches(process, _digest(process, planner), patched)
    pairs = plan_pairs(planner, patcher)
    if heap is None:
        lines = no_heap_lines(patcher.shim)
    stops = np.concatenate([stops, patcher.stops])
    return InlineSession(lines, path, notes, unplaced, stops, pairs)


def _digest(process: HookedProcess, planner: PairPlanner) -> int:
    """Digest of what the functions' numbers depend on: the pair files and the loaded files."""
    files = {mapping.path for mapping in process.mappings() if mapping.is_executable} - {process.shim.path}
    return int.from_bytes(sha256(repr((planner.digest, sorted(files))).encode()).digest()[:8], "little")


@dataclass(frozen=True, slots=True)
class _PatchedFile:
    mapped: MappedFile
    room: int


assert HEAP_SLOTS + 64 <= ROOM_SLOTS  # Patches.functions_max


def _sized(site: PatchSite) -> PatchSite:
    """Fills in a missing size from the unwind tables."""
    text = None if site.size else site.elf.text_segment(site.file_offset)
    if text is None:
        return site
    vaddr = text.vaddr + site.file_offset - text.file_offset
    return replace(site, size=FunctionExtents(site.elf).bytes_from(vaddr))


def _padding(elf: ElfFile, text: Segment, site: PatchSite) -> bytes:
    """A compiler's padding behind a function: no-ops or breakpoints up to the alignment."""
    end = site.file_offset + site.size
    vaddr = text.vaddr + end - text.file_offset
    code = elf.slice(end, min(-vaddr % _ALIGNMENT, text.file_offset + text.file_bytes - end))
    decoded = list(PROBED_ARCHES[elf.machine].decode(code, 0))
    is_padding = (
        decoded and decoded[-1].end == len(code) and all(item.mnemonic in ("nop", "int3") for item in decoded)
    )
    return code if site.size and is_padding else b""
