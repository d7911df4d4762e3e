"""Stacks that begin in the kernel: the frames that it walked itself, then the calling user frames."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.stacks.modules import ModuleFile, ModuleFiles
from memleak_android.host.stacks.samples import Samples
from memleak_android.host.wire.blocks import FRAME_ROW, NO_MODULE, Rows
from memleak_android.host.wire.packed import ranges
from memleak_android.unwind.elf_headers import SYMBOL_64
from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd

_SYMBOLS_MAX = 1 << 20  # of all modules; a kernel has some 200,000 functions
_FUNCTION = 2 | 1 << 4  # STT_FUNC, STB_GLOBAL
_ADDRESS_END = 1 << 64


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """start, end: addresses. base: of its module."""

    start: int
    end: int
    base: int
    module: str
    name: str


def read_functions(texts: Iterable[str]) -> list[KernelFunction]:
    """In ascending order, each start once; malformed lines are skipped."""
    found: dict[int, KernelFunction] = {}
    for text in texts:
        for line in text.splitlines():
            parts = line.split(" ", 4)
            try:
                start, end, base = (int(part, 16) for part in parts[:3])
                module, name = parts[3:]
            except ValueError:
                continue
            if 0 <= base <= start < end < _ADDRESS_END and len(found) < _SYMBOLS_MAX:
                found[start] = KernelFunction(start, end, base, module, name)
    return [found[start] for start in sorted(found)]


def module_path(module: str) -> str:
    """The path of a kernel module in frames: `[kernel]`, `[ext4]`."""
    return f"[{module}]"


def symbol_file(functions: Sequence[KernelFunction]) -> bytes:
    """An ELF file with the symbols of one module's functions (gABI chapter 4): .text without bytes, .symtab, .strtab."""
    strings, table = bytearray(b"\0"), np.zeros(len(functions) + 1, SYMBOL_64)
    for row, function in zip(table[1:], functions, strict=True):
        row["name"], row["info"], row["section"] = len(strings), _FUNCTION, 1
        row["value"], row["size"] = function.start - function.base, function.end - function.start
        strings += function.name.encode() + b"\0"
    names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0"
    contents = [table.tobytes(), bytes(strings), names]
    offsets = np.cumsum([64, *map(len, contents)]).tolist()
    reach = max((function.end - function.base for function in functions), default=0)
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0),
        (1, 8, 6, 0, 0, reach, 0, 0),  # SHT_NOBITS; SHF_ALLOC | SHF_EXECINSTR
        (7, 2, 0, 0, offsets[0], len(contents[0]), 3, 24),
        (15, 3, 0, 0, offsets[1], len(contents[1]), 0, 0),
        (23, 3, 0, 0, offsets[2], len(contents[2]), 0, 0),
    ]
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 0, 1, 0, 0, offsets[3], 0, 64, 56, 0, 64, len(sections), 4
    )
    return b"".join([head, *contents, *(struct.pack("<IIQQQQIIQQ", *s[:7], 0, 1, s[7]) for s in sections)])


class KernelImage:
    """Addresses of the kernel → module and vaddr, by the reported functions."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._functions = read_functions(texts)
        self._starts = np.array([function.start for function in self._functions], np.uint64)
        self.modules = sorted({function.module for function in self._functions})

    def file(self, module: str) -> ModuleFile:
        own = [function for function in self._functions if function.module == module]
        return ModuleFile(module_path(module), "", memoryview(symbol_file(own)), None)

    def locate(
        self, addresses: NDArray[np.uint64], numbers: dict[str, int]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """For return addresses the number of the module (NO_MODULE: unknown) and the vaddr in it. numbers: by module."""
        module = np.full(len(addresses), NO_MODULE, np.uint32)
        vaddr = addresses.copy()
        distinct, inverse = np.unique(addresses, return_inverse=True)
        indexes = np.searchsorted(self._starts, distinct - np.uint64(1), side="right") - 1
        for i, (address, index) in enumerate(zip(distinct.tolist(), indexes.tolist(), strict=True)):
            if index < 0 or address > self._functions[index].end:
                continue
            function = self._functions[index]
            module[inverse == i] = numbers[function.module]
            vaddr[inverse == i] = address - function.base
        return module, vaddr


class KernelStacks:
    """Joins the two parts. texts: payloads of KERNEL_SYMBOLS; more may be appended."""

    def __init__(self, texts: Sequence[str], files: ModuleFiles) -> None:
        self._texts = texts
        self._files = files
        self._n_read = 0
        self._image = KernelImage(())
        self._numbers: dict[str, int] = {}

    def join(self, samples: Samples, user: TraceBatch, user_frames: Rows) -> tuple[TraceBatch, Rows]:
        """user, user_frames: the unwound samples; meaningless where no registers were captured."""
        self._read_more()
        has_user = samples.rows["n_registers"] > 0
        n_user = np.where(has_user, np.diff(user.offsets), 0)
        n_kernel = samples.chains.counts
        offsets = np.concatenate([[0], np.cumsum(n_user + n_kernel)]).astype(np.int64)
        frames = np.empty(offsets[-1], FRAME_ROW)
        frames[ranges(offsets[:-1], n_kernel)] = self._kernel_frames(samples.chains.addresses)
        frames[ranges(offsets[:-1] + n_kernel, n_user)] = user_frames[ranges(user.offsets[:-1], n_user)]
        return (
            TraceBatch(
                offsets=offsets,
                address=frames["address"],
                sp=frames["sp"],
                is_return=frames["is_return"] != 0,
                method=frames["method"].astype(np.uint8),
                end=np.where(has_user, user.end, np.uint8(TraceEnd.ROOT)).astype(np.uint8),
            ),
            frames,
        )

    def _kernel_frames(self, addresses: NDArray[np.uint64]) -> Rows:
        frames = np.zeros(len(addresses), FRAME_ROW)
        frames["address"] = addresses
        frames["module"], frames["vaddr"] = self._image.locate(addresses, self._numbers)
        frames["method"], frames["is_return"] = int(Method.KERNEL), 1
        return frames

    def _read_more(self) -> None:
        if self._n_read == len(self._texts):
            return
        self._n_read = len(self._texts)
        self._image = KernelImage(self._texts)
        for module in self._image.modules:
            self._numbers[module] = self._files.put(self._image.file(module))


def kernel_modules(texts: Sequence[str]) -> dict[str, ModuleFile]:
    """By path, of a finished recording."""
    image = KernelImage(texts)
    return {module_path(module): image.file(module) for module in image.modules}
