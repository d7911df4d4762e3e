"""The unwinder's input and output: arrays over many samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.memory import MemoryRegions

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class TraceEnd(IntEnum):
    """Why a chain of frames ends. Only ROOT is a complete stack."""

    ROOT = 0  # the thread's start: return address undefined or 0
    NO_MAPPING = 1  # the pc lies in no mapping
    NO_UNWIND_ROW = 2  # the module has no rule for the pc, and no fallback applied
    STACK_TRUNCATED = 3  # a needed stack word lies outside the captured bytes
    NO_PROGRESS = 4  # neither pc nor sp changed, or sp moved the wrong way
    UNSUPPORTED_RULE = 5  # CFI that is malformed or that this version cannot evaluate
    MAX_FRAMES = 6


class Method(IntEnum):
    """The evidence by which a frame was found (report.json `method`, lower case)."""

    REGISTERS = 0
    EH_FRAME = 1
    DEBUG_FRAME = 2
    DEBUGDATA = 3
    EXIDX = 4
    SIGNAL = 5
    JIT = 6
    DEX = 7
    FP = 8
    LR = 9
    PROLOGUE = 10
    JOINED = 11
    FOLDED = 12  # no frame: others were left out here
    KERNEL = 13  # as the kernel walked its own stack
    PYTHON = 14  # as the interpreter keeps it


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """n captured stacks of one architecture.

    registers: (n, len(arch.registers)) in the order of arch.registers; unknown values are 0.
    known: the same shape; False where a register's value was not captured.
    stack_bytes: all slices, flat; the slice of sample i is
        stack_bytes[stack_offset[i] : stack_offset[i] + stack_length[i]] and begins at stack_address[i].
        Offsets are multiples of 8.
    space: index into the address spaces that are passed with the batch (one per process and epoch of its maps).
    at_return: True where the pc register is a return address (looked up at pc - 1).
    extra_memory: by sample, other captured memory (a second stack, heap) or None. Samples with some are stepped
        one by one.
    """

    arch: Arch
    registers: NDArray[np.uint64]
    known: NDArray[np.bool_]
    stack_address: NDArray[np.uint64]
    stack_offset: NDArray[np.int64]
    stack_length: NDArray[np.int64]
    stack_bytes: NDArray[np.uint8]
    space: NDArray[np.int32]
    at_return: NDArray[np.bool_]
    extra_memory: Sequence[MemoryRegions | None] | None = None

    def __len__(self) -> int:
        return len(self.stack_address)


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """n traces, flat: frames of trace i are [offsets[i], offsets[i+1]), innermost first.

    address: pc as found (return addresses are not reduced). is_return: look it up at address - 1.
    sp: stack pointer in that frame. method: enum Method. end: enum TraceEnd, one per trace.
    """

    offsets: NDArray[np.int64]
    address: NDArray[np.uint64]
    sp: NDArray[np.uint64]
    is_return: NDArray[np.bool_]
    method: NDArray[np.uint8]
    end: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.end)
