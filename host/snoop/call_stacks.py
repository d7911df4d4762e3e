"""Stacks of calls: each evidence block is unwound and named as it arrives."""

import os

import numpy as np

from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.stacks.address_spaces import AddressSpaces, recorded_mapping
from memleak_android.host.stacks.columns import frame_rows
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.stacks.samples import read_samples
from memleak_android.host.stacks.stack_unwinder import MappedModules, arch_of
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.host.wire.blocks import NO_MODULE, Block, BlockKind, Rows
from memleak_android.host.wire.packed import distinct
from memleak_android.unwind.trace import TraceEnd
from memleak_android.unwind.walk.batch import BatchUnwinder

KINDS = frozenset(
    {BlockKind.HELLO, BlockKind.MAPS, BlockKind.MAPPINGS, BlockKind.PROCESS, BlockKind.EVIDENCE}
)
_KEPT_MAX = 1 << 16  # stacks that wait for their call


class CallStacks:
    """Stacks by call.

    files: the modules; they are opened as soon as a block mentions them.
    """

    def __init__(self, files: ModuleFiles, symbolizer: Symbolizer) -> None:
        self._capture = Capture()
        self._files = files
        self._symbolizer = symbolizer
        self._spaces: AddressSpaces | None = None
        self._by_call: dict[int, tuple[str, ...]] = {}
        self._names: dict[tuple[int, int, int], tuple[str, ...]] = {}

    def add(self, block: Block) -> None:
        """Adds a block of KINDS, in stream order."""
        known = self._capture
        if block.kind != BlockKind.EVIDENCE:
            known.add(block, -1)
            self._spaces = None
            self._open_files(block)
            return
        only = Capture()
        only.add(block, 0)
        references = only.evidence()
        if self._spaces is None:
            self._spaces = AddressSpaces(known.maps, known.mappings, known.processes)
        index = self._spaces.index(references["pid"], references["timestamp_ns"])
        unwinder = BatchUnwinder(self._spaces.spaces, MappedModules(self._files, self._spaces.spaces))
        for samples in read_samples(references, index, lambda _: block, arch_of(known.arch_number)):
            traces = unwinder.unwind(samples.batch)
            frames = frame_rows(traces, samples.batch.space, self._spaces.spaces, self._files)
            self._keep(
                samples.rows["sequence"].tolist(), traces.offsets.tolist(), traces.end.tolist(), frames
            )

    def take(self, call: int) -> tuple[str, ...]:
        """Removes and returns a call's frames, innermost first, `name+0x12 (module)`; () if unknown."""
        return self._by_call.pop(call, ())

    def _open_files(self, block: Block) -> None:
        known = self._capture
        if block.kind == BlockKind.MAPS and known.maps:
            for mapping in parse_maps(known.maps[-1].text):
                self._files.note(known.maps[-1].pid, mapping)
        elif block.kind == BlockKind.MAPPINGS and known.mappings:
            for row, path in zip(*known.mappings[-1], strict=True):
                self._files.note(int(row["pid"]), recorded_mapping(row, path))

    def _keep(self, calls: list[int], offsets: list[int], ends: list[int], frames: Rows) -> None:
        self._name(frames)
        locations = list(
            zip(*(frames[name].tolist() for name in ("module", "vaddr", "is_return")), strict=True)
        )
        for i, call in enumerate(calls):
            names = [
                name for location in locations[offsets[i] : offsets[i + 1]] for name in self._names[location]
            ]
            if ends[i] != TraceEnd.ROOT:
                names.append(f"[{TraceEnd(ends[i]).name.lower()}]")
            self._by_call[call] = tuple(names)
        while len(self._by_call) > _KEPT_MAX:
            del self._by_call[next(iter(self._by_call))]

    def _name(self, frames: Rows) -> None:
        """Names each distinct location once."""
        columns = frames["module"], frames["vaddr"], frames["is_return"]
        first, _ = distinct(*columns)
        found = zip(*(column[first].tolist() for column in columns), strict=True)
        new = [location for location in found if location not in self._names]
        for number in {module for module, _, _ in new}:
            locations = [location for location in new if location[0] == number]
            if number == NO_MODULE:
                self._names.update({location: (f"{location[1]:#x}",) for location in locations})
                continue
            file = self._files.files[number]
            vaddrs = np.array([vaddr - is_return for _, vaddr, is_return in locations], np.uint64)
            base = os.path.basename(file.path)
            for location, chain in zip(locations, self._symbolizer.resolve(file, vaddrs), strict=True):
                self._names[location] = tuple(
                    f"{frame.function or hex(location[1])}{'' if frame.inlined or not frame.function else f'+{frame.offset + location[2]:#x}'} ({base})"
                    for frame in chain
                )
