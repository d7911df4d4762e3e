"""Snapshot folders: the registers, mappings, memory and ELF files of one stopped thread, unwound off-line.

    regs.txt     `name: hex` lines
    maps.txt     text of /proc/PID/maps; fields after the file offset may be missing but for the path
    *.data       an address (8 bytes, little-endian), then the memory there: stack.data, stack0.data, …
    the ELF files, named as the last part of their paths in maps.txt

The same layout as AOSP's off-line cases for libunwindstack.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memleak_android.unwind.arch import ARCHES, Arch
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.errors import BadSnapshotError
from memleak_android.unwind.maps import AddressSpace, Mapping, layered
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.snapshot.files import MemoryFile, read_mappings, read_memory, read_registers
from memleak_android.unwind.snapshot.jit_debug import function_ranges, jit_modules
from memleak_android.unwind.snapshot.mapped_elf import ElfFinder, MappedElf
from memleak_android.unwind.trace import Method, SampleBatch, TraceBatch, TraceEnd
from memleak_android.unwind.walk.batch import BatchUnwinder

__all__ = ["MemoryFile", "Snapshot", "SnapshotFrame", "SnapshotOptions"]


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """Options that a snapshot folder does not contain.

    arch: None: detected from register names and ELF files. memory_files: None: every *.data.
    with_memory: False: no memory was captured. signature_mask: bits that signed return addresses use.
    frame_pointers: step by frame pointer also through code without a file, which nothing can confirm.
    jit_debug: use what JIT compilers announce to debuggers, where it was captured.
    like_libunwindstack: report two kinds of frames as that unwinder does: interrupted frames are looked up as if
    they were callers, and the caller of a call to nowhere keeps the stack pointer from before its return.
    """

    arch: Arch | None = None
    signature_mask: int | None = None
    with_memory: bool = True
    memory_files: tuple[str, ...] | None = None
    extra_memory: tuple[MemoryFile, ...] = ()
    extra_maps: tuple[Mapping, ...] = ()
    max_frames: int = 1024
    frame_pointers: bool = False
    like_libunwindstack: bool = False
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
    """A folder, read. Raises BadSnapshotError; files that maps.txt names may be missing.

    unknown_registers: names in regs.txt that the architecture does not have; they are not used.
    """

    def __init__(self, folder: Path, options: SnapshotOptions | None = None) -> None:
        self._folder = folder
        self._options = options or SnapshotOptions()
        self._jit: dict[Mapping, Module] = {}
        self._shown = layered(read_mappings(folder), self._options.extra_maps)
        self._given = read_registers(folder)
        self._memory = MemoryRegions(self._captured())
        self._finder = ElfFinder(folder, self._shown, self._memory if self._options.with_memory else None)
        self.arch = self._options.arch or self._find_arch()
        self.unknown_registers = tuple(name for name in self._given if not _has(self.arch, name))
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

    @property
    def refused_files(self) -> list[str]:
        """Names of links in the folder that were not followed, because they lead out of it or nowhere."""
        return sorted(self._finder.refused)

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
            if not _has(arch, name):
                continue
            if value >> 8 * arch.word_bytes:
                raise self._bad_registers(
                    f"{name} is {value:#x}, more than {arch.name} holds", "name the architecture"
                )
            registers[0, arch.slot(name)], known[0, arch.slot(name)] = value, True
        if not known[0, arch.pc]:
            name = arch.registers[arch.pc].name
            raise self._bad_registers(f"no {name}, which {arch.name} needs", "name the architecture")
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
        if self._options.like_libunwindstack:
            is_return = is_return or method is Method.SIGNAL
            if method is Method.LR and self.arch.link is None:
                sp = int(traces.sp[i - 1])
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
        """The address of the call before a return address."""
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
        if not self._options.with_memory:
            return []
        return read_memory(self._folder, self._options.memory_files, self._options.extra_memory)

    def _find_arch(self) -> Arch:
        """The one that knows most of the names; where several do, as those of 32 and 64 bits: by the ELF files."""
        strange = {arch: sum(not _has(arch, name) for name in self._given) for arch in ARCHES}
        known = [arch for arch in ARCHES if any(_has(arch, name) for name in self._given)]
        if not known:
            expected = "expected those of " + ", ".join(arch.name for arch in ARCHES)
            raise self._bad_registers("its registers are of no architecture known here", expected)
        fitting = [arch for arch in known if strange[arch] == min(strange.values())]
        if len(fitting) == 1:
            return fitting[0]
        pc = self._shown.find(self._given.get("pc", 0))
        for mapping in [*([pc] if pc else []), *(m for m in self._shown.mappings if m.is_executable)]:
            module = self.elf(mapping).module
            if module is not None and module.arch in fitting:
                return module.arch
        wide = max(self._given.values()) >> 32 != 0
        return next((arch for arch in fitting if (arch.word_bytes == 8) == wide), fitting[0])

    def _bad_registers(self, reason: str, hint: str) -> BadSnapshotError:
        return BadSnapshotError(self._folder / "regs.txt", reason, hint)


def _has(arch: Arch, name: str) -> bool:
    return any(name == register.name or name in register.aliases for register in arch.registers)
