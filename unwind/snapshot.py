"""Snapshot folders: the registers, mappings, memory and ELF files of one stopped thread, unwound off-line.

    regs.txt     `name: hex` lines
    maps.txt     text of /proc/PID/maps; fields after the file offset may be missing but for the path
    *.data       an address (8 bytes, little-endian), then the memory there: stack.data, stack0.data, …
    the ELF files, named as the last part of their paths in maps.txt

The same layout as AOSP's off-line cases for libunwindstack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memleak_android.unwind.arch import ARCHES, Arch
from memleak_android.unwind.batch import BatchUnwinder
from memleak_android.unwind.errors import BadSnapshotError
from memleak_android.unwind.jit_debug import function_ranges, jit_modules
from memleak_android.unwind.mapped_elf import ElfFinder, MappedElf
from memleak_android.unwind.maps import AddressSpace, Mapping, layered
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.module import Module
from memleak_android.unwind.trace import Method, SampleBatch, TraceBatch, TraceEnd

_FILE_BYTES_MAX = 1 << 30
_LINES_MAX = 1 << 18
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file of the folder whose bytes [file_offset, file_offset + size) lay at `start`. size None: to its end."""

    name: str
    start: int
    file_offset: int = 0
    size: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """What a snapshot folder does not say itself.

    arch: None: by the names of the registers and by the ELF files. memory_files: None: every *.data.
    with_memory: False: no memory was captured at all. signature_mask: bits that signed return addresses use.
    frame_pointers: step by frame pointer also through code that no file shows, so that nothing can confirm it.
    jit_debug: use what JIT compilers announce to debuggers, where it was captured.
    reduce_interrupted: look up also what a signal interrupted as if it were a caller (libunwindstack's rule).
    """

    arch: Arch | None = None
    signature_mask: int | None = None
    with_memory: bool = True
    memory_files: tuple[str, ...] | None = None
    extra_memory: tuple[MemoryFile, ...] = ()
    extra_maps: tuple[Mapping, ...] = ()
    max_frames: int = 1024
    frame_pointers: bool = False
    reduce_interrupted: bool = False
    jit_debug: bool = True


@dataclass(frozen=True, slots=True)
class SnapshotFrame:
    """One frame. pc: as the step found it, of callers their return address. lookup: the address of the instruction
    that is under way: of callers that of the call. elf, mapping: None where no mapping holds it."""

    pc: int
    lookup: int
    sp: int
    method: Method
    mapping: Mapping | None
    elf: MappedElf | None
    symfile: Module | None = None

    @property
    def named_by(self) -> tuple[Module, int] | None:
        """The ELF that names this code, and the vaddr in it; None where no usable one is known."""
        if self.symfile is not None:
            return self.symfile, self.lookup
        if self.elf is None or self.elf.module is None or self.mapping is None:
            return None
        return self.elf.module, self.lookup if self.mapping.is_symfile else self.rel_pc

    @property
    def rel_pc(self) -> int:
        """lookup as a vaddr of its ELF; without an ELF from where its mapping begins."""
        if self.mapping is None or self.elf is None:
            return self.lookup
        return self.elf.vaddr(self.mapping, self.lookup)


class Snapshot:
    """A folder, read. Raises BadSnapshotError; a file that maps.txt names and that is missing is no error."""

    def __init__(self, folder: Path, options: SnapshotOptions | None = None) -> None:
        self._folder = folder
        self._options = options or SnapshotOptions()
        self._jit: dict[Mapping, Module] = {}
        lines = _lines(folder / "maps.txt")
        mappings = [
            _mapping(folder / "maps.txt", number, line) for number, line in enumerate(lines, 1) if line
        ]
        self._shown = layered(mappings, self._options.extra_maps)
        self._given = _registers(folder / "regs.txt")
        self._memory = MemoryRegions(self._captured() if self._options.with_memory else ())
        self._finder = ElfFinder(folder, self._shown, self._memory if self._options.with_memory else None)
        self.arch = self._options.arch or self._find_arch()
        self.space: AddressSpace = self._with_jit() if self._options.jit_debug else self._shown

    def unwind(self) -> tuple[list[SnapshotFrame], TraceEnd]:
        """The frames, innermost first, and why they end."""
        unwinder = BatchUnwinder(
            [self.space],
            self,
            max_frames=self._options.max_frames,
            signature_mask=self._options.signature_mask,
            frame_pointers=self._options.frame_pointers,
        )
        traces = unwinder.unwind(self.sample())
        return [self._frame(traces, i) for i in range(len(traces.address))], TraceEnd(int(traces.end[0]))

    def module(self, space: int, mapping: Mapping) -> Module | None:
        """The ELF behind a mapping (this is a ModuleSource)."""
        return self._jit.get(mapping) or self.elf(mapping).module

    def elf(self, mapping: Mapping) -> MappedElf:
        """The ELF image that a mapping shows."""
        return self._finder.find(mapping)

    def sample(self) -> SampleBatch:
        """The thread as a batch of one."""
        arch = self.arch
        registers = np.zeros((1, len(arch.registers)), np.uint64)
        known = np.zeros(registers.shape, np.bool_)
        for name, value in self._given.items():
            try:
                slot = arch.slot(name)
            except KeyError:
                raise BadSnapshotError(
                    self._folder / "regs.txt",
                    f"{name} is no register of {arch.name}",
                    "name the architecture",
                ) from None
            registers[0, slot], known[0, slot] = value, True
        sp = int(registers[0, arch.sp])
        start, data = self._memory.region_of(sp)
        zero = np.zeros(1, np.int64)
        return SampleBatch(
            arch,
            registers,
            known,
            np.array([start], np.uint64),
            zero,
            zero + len(data),
            np.frombuffer(data, np.uint8),
            np.zeros(1, np.int32),
            np.zeros(1, np.bool_),
            [self._memory],
        )

    def _frame(self, traces: TraceBatch, i: int) -> SnapshotFrame:
        pc, sp = int(traces.address[i]), int(traces.sp[i])
        method, is_return = Method(int(traces.method[i])), bool(traces.is_return[i])
        if i + 1 < len(traces.method) and traces.method[i + 1] == Method.SIGNAL:
            is_return = (
                False  # a handler returns to the trampoline's first instruction; nothing there has called it
            )
        if method is Method.SIGNAL and self._options.reduce_interrupted:
            is_return = True
        at = (pc & self.arch.instruction_mask) - is_return
        mapping = self._shown.find(at)
        if mapping is None:
            return SnapshotFrame(pc, pc, sp, method, None, None)
        if method is Method.DEX:
            return SnapshotFrame(pc, pc, sp, method, mapping, MappedElf(None, 0))
        elf = self.elf(mapping)
        lookup = self.call_address(mapping, elf, pc) if is_return else pc
        code = self.space.find(at)
        symfile = self._jit.get(code) if code is not None else None
        return SnapshotFrame(pc, lookup, sp, method, mapping, elf, symfile)

    def call_address(self, mapping: Mapping, elf: MappedElf, return_address: int) -> int:
        """Where the call before a return address begins."""
        longest = max(form.length for form in self.arch.call_forms)
        at = return_address & self.arch.instruction_mask
        code = b""
        if elf.module is not None:
            bias = 0 if mapping.is_symfile else elf.module.bias_of(mapping)
            code = elf.module.bytes_at(at + bias - longest, longest)
        length = self.arch.call_length(return_address, code)
        return return_address - (length if elf.vaddr(mapping, return_address) >= length else 0)

    def _with_jit(self) -> AddressSpace:
        """The code of JIT compilers as mappings of its own, over memory that no ELF explains."""
        tops = []
        for module in jit_modules(self.arch, self._shown, self._memory, lambda m: self.elf(m).module):
            for start, end in function_ranges(module):
                below = self._shown.find(start)
                if start < end and below is not None and end <= below.end and self.elf(below).module is None:
                    top = Mapping(start, end, below.permissions, 0, module.path, is_symfile=True)
                    self._jit.setdefault(top, module)
                    tops.append(top)
        return layered(self._shown.mappings, tops) if tops else self._shown

    def _captured(self) -> list[tuple[int, memoryview]]:
        names = self._options.memory_files
        paths = sorted(self._folder.glob("*.data")) if names is None else [self._folder / n for n in names]
        regions = []
        for path in paths:
            data = _content(path)
            if len(data) < 8:
                raise BadSnapshotError(path, "no start address", "8 bytes of address, then the memory")
            regions.append((int.from_bytes(data[:8], "little"), data[8:]))
        for extra in self._options.extra_memory:
            data = _content(self._folder / extra.name)
            end = len(data) if extra.size is None else extra.file_offset + extra.size
            regions.append((extra.start, data[extra.file_offset : end]))
        return regions

    def _find_arch(self) -> Arch:
        fitting = [arch for arch in ARCHES if _knows(arch, self._given)]
        if not fitting:
            raise BadSnapshotError(
                self._folder / "regs.txt",
                "its registers are of no architecture known here",
                _expected_arches(),
            )
        if len(fitting) == 1:
            return fitting[0]
        pc = self._shown.find(self._given.get("pc", 0))
        for mapping in [*([pc] if pc else []), *(m for m in self._shown.mappings if m.is_executable)]:
            module = self.elf(mapping).module
            if module is not None and module.arch in fitting:
                return module.arch
        wide = max(self._given.values()) >> 32 != 0
        return next((arch for arch in fitting if (arch.word_bytes == 8) == wide), fitting[0])


def _knows(arch: Arch, names: Sequence[str] | dict[str, int]) -> bool:
    known = {name for register in arch.registers for name in (register.name, *register.aliases)}
    return known.issuperset(names)


def _expected_arches() -> str:
    return "expected those of " + ", ".join(arch.name for arch in ARCHES)


def _content(path: Path) -> memoryview:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise BadSnapshotError(
                path, f"larger than {_FILE_BYTES_MAX} bytes", "give the captured part only"
            )
        return memoryview(path.read_bytes())
    except OSError as error:
        raise BadSnapshotError(path, error.strerror or str(error), "a snapshot folder needs it") from None


def _lines(path: Path) -> list[str]:
    lines = bytes(_content(path)).decode("utf-8", "replace").splitlines()
    if len(lines) > _LINES_MAX:
        raise BadSnapshotError(path, f"more than {_LINES_MAX} lines", "give the text of one process")
    return [line.strip() for line in lines]


def _registers(path: Path) -> dict[str, int]:
    values = {}
    for number, line in enumerate(_lines(path), 1):
        name, colon, value = line.partition(":")
        try:
            if line:
                values[name.strip()] = int(value, 16) & (1 << 64) - 1
        except ValueError:
            colon = ""
        if line and not colon:
            raise BadSnapshotError(
                path, f"line {number} is no register: {line[:60]!r}", "expected `name: hex`"
            )
    if not values:
        raise BadSnapshotError(path, "it names no register", "expected lines `name: hex`")
    return values


def _mapping(path: Path, number: int, line: str) -> Mapping:
    """Some writers put the last byte in the place of the end, which is a multiple of the page size."""
    fields = line.split(None, 5)
    low, _, high = fields[0].partition("-")
    try:
        start, end = int(low, 16), int(high, 16)
        permissions, offset = fields[1], int(fields[2], 16)
        end += end % _PAGE == _PAGE - 1
        if not 0 <= start < end <= 1 << 64 or offset >> 63:
            raise ValueError
    except (ValueError, IndexError):
        raise BadSnapshotError(
            path, f"line {number} is no mapping: {line[:60]!r}", "expected the text of /proc/PID/maps"
        ) from None
    return Mapping(start, end, permissions, offset, fields[5] if len(fields) > 5 else "")
