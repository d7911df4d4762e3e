"""Registers, stack bytes and mappings of a stopped x86_64 process, by ptrace: what unwind_batch is given."""

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from memleak_android.unwind import (
    AddressSpace,
    Arch,
    BadElfError,
    BatchUnwinder,
    Mapping,
    Module,
    SampleBatch,
    TraceBatch,
    TraceEnd,
    UnsupportedArchError,
)
from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.engine.library import library_path
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.step import StepFrame, unwind_sample

_SEIZE, _INTERRUPT, _DETACH, _GETREGSET = 0x4206, 0x4207, 17, 0x4204
_NT_PRSTATUS = 1
_WALL = 0x40000000
_N_REGISTERS = 27  # struct user_regs_struct; its first 21 are struct pt_regs
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


@dataclass(frozen=True)
class CapturedStack:
    """One thread: registers in wire order, and the bytes from the stack pointer to its mapping's end."""

    registers: tuple[int, ...]
    stack_address: int
    stack: bytes
    at_return: bool = False
    space: int = 0


@dataclass
class FileModules:
    """A ModuleSource over the files of this machine. images: path in maps → ELF bytes (the vdso)."""

    images: dict[str, bytes] = field(default_factory=dict)
    opened: dict[str, Module | None] = field(default_factory=dict)
    folder: Path | None = None

    def module(self, space: int, mapping: Mapping) -> Module | None:
        if mapping.path not in self.opened:
            self.opened[mapping.path] = self._open(mapping.path)
        return self.opened[mapping.path]

    def _open(self, path: str) -> Module | None:
        try:
            if path in self.images:
                return Module.from_bytes(self.images[path], path)
            if self.folder is not None:
                return Module.from_path(self.folder / path)
            return Module.from_path(path) if path.startswith("/") else None
        except (BadElfError, UnsupportedArchError):
            return None


def _ptrace(request: int, tid: int, address: int = 0, data: object = None) -> None:
    if _libc.ptrace(request, tid, address, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace({request:#x}, {tid})")


@contextmanager
def stopped(tid: int) -> Iterator[None]:
    """The thread stands still inside."""
    _ptrace(_SEIZE, tid)
    try:
        _ptrace(_INTERRUPT, tid)
        os.waitpid(tid, _WALL)
        yield
    finally:
        _ptrace(_DETACH, tid)


def read_registers(tid: int) -> tuple[int, ...]:
    """The 21 words of struct pt_regs of a stopped thread."""
    buffer = ctypes.create_string_buffer(8 * _N_REGISTERS)
    iovec = _Iovec(ctypes.addressof(buffer), len(buffer))
    _ptrace(_GETREGSET, tid, _NT_PRSTATUS, ctypes.addressof(iovec))
    return struct.unpack_from("<21Q", buffer.raw)


def parse_maps(text: str) -> AddressSpace:
    """Text of /proc/PID/maps."""
    mappings = []
    for line in text.splitlines():
        span, permissions, offset, device, inode, *path = line.split(maxsplit=5)
        start, end = (int(x, 16) for x in span.split("-"))
        name = path[0] if path else ""
        mappings.append(Mapping(start, end, permissions, int(offset, 16), name, device, int(inode)))
    return AddressSpace(mappings)


def capture(tid: int) -> tuple[CapturedStack, AddressSpace, FileModules]:
    """One stopped look at a thread of a running process."""
    with stopped(tid), Path(f"/proc/{tid}/mem").open("rb", buffering=0) as memory:
        registers = read_registers(tid)
        space = parse_maps(Path(f"/proc/{tid}/maps").read_text())
        sp = registers[19]
        mapping = space.find(sp)
        assert mapping is not None, f"{sp:#x} is not mapped"
        images = {}
        for m in space.mappings:
            if m.path == "[vdso]":
                memory.seek(m.start)
                images[m.path] = memory.read(m.end - m.start)
        memory.seek(sp)
        stack = memory.read(mapping.end - sp)
    return CapturedStack(registers, sp, stack), space, FileModules(images)


def sample_batch(stacks: Sequence[CapturedStack], arch: Arch = ARCH) -> SampleBatch:
    """SampleBatch of some stacks, of which all registers are known."""
    padded = [s.stack + bytes(-len(s.stack) % 8) for s in stacks]
    lengths = np.array([len(s.stack) for s in stacks], np.int64)
    ends = np.cumsum([len(p) for p in padded])
    registers = np.array([s.registers for s in stacks], np.uint64).reshape(len(stacks), len(arch.registers))
    return SampleBatch(
        arch,
        registers,
        np.ones(registers.shape, np.bool_),
        np.array([s.stack_address for s in stacks], np.uint64),
        np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(stacks) else np.empty(0, np.int64),
        lengths,
        np.frombuffer(b"".join(padded), np.uint8),
        np.array([s.space for s in stacks], np.int32),
        np.array([s.at_return for s in stacks], np.bool_),
    )


def repeated(samples: SampleBatch, n: int) -> SampleBatch:
    """The same samples n times, of the same stack bytes."""
    columns = ("registers", "known", "stack_address", "stack_offset", "stack_length", "space", "at_return")
    return replace(samples, **{name: np.repeat(getattr(samples, name), n, 0) for name in columns})


def traced_child(argv: Sequence[str]) -> int:
    """A child stopped before the first instruction of its program (PTRACE_TRACEME, then exec)."""
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            _ptrace(0, 0)
            os.execv(argv[0], list(argv))
        finally:
            os._exit(127)
    os.waitpid(pid, _WALL)
    return pid


def single_step(pid: int) -> bool:
    """Runs one instruction; False when the process has ended."""
    _ptrace(9, pid)
    _, status = os.waitpid(pid, _WALL)
    return os.WIFSTOPPED(status)


def scalar_traces(
    samples: SampleBatch, spaces: Sequence[AddressSpace], modules: FileModules, max_frames: int = 1024
) -> list[tuple[list[StepFrame], TraceEnd]]:
    """What step.py finds, sample by sample."""
    planner = Planner(samples.arch, spaces, modules)
    return [unwind_sample(samples, i, planner, max_frames) for i in range(len(samples))]


def assert_same_traces(
    samples: SampleBatch, spaces: Sequence[AddressSpace], modules: FileModules, max_frames: int = 1024
) -> None:
    """Batches with and without the engine and the scalar unwinder agree in every column."""
    expected = scalar_traces(samples, spaces, modules, max_frames)
    for engine in (None, library_path()):
        unwinder = BatchUnwinder(spaces, modules, max_frames=max_frames, engine=engine)
        assert_traces(unwinder.unwind(samples), expected)


def assert_traces(traces: TraceBatch, expected: Sequence[tuple[Sequence[StepFrame], TraceEnd]]) -> None:
    """Every column of every trace is what the scalar unwinder says."""
    for i, (frames, end) in enumerate(expected):
        columns = (traces.address, traces.sp, traces.is_return, traces.method)
        span = slice(int(traces.offsets[i]), int(traces.offsets[i + 1]))
        found = list(zip(*(column[span].tolist() for column in columns), strict=True))
        assert found == [tuple(frame) for frame in frames], f"sample {i}"
        assert traces.end[i] == end, f"sample {i}"
