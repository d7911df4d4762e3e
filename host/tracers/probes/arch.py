"""Data about an architecture for the placement of probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.sections import EM_AARCH64, EM_X86_64
from memleak_android.host.tracers.probes import arm64, x86_64
from memleak_android.unwind.code.disassembly import Instruction, decode_arm64, decode_x86_64

FindJumps = Callable[[NDArray[np.uint8], int, int], tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class ProbedArch:
    """One architecture whose code takes uprobes.

    decode: code bytes and address → instructions.
    is_cheap: whether the kernel emulates an instruction under a uprobe.
    cheap: the kernel's word for that.
    arguments: registers of integer arguments.
    preserved: registers that hold the caller's values at the entry, the return address included.
    loads: mnemonics that load a pointer unchanged.
    landing: mnemonic of the no-op at the start of a function.
    find_jumps: text and a range of it → sources and targets of what may be direct jumps or calls there.
    """

    elf_machine: int
    decode: Callable[[bytes, int], Iterator[Instruction]]
    is_cheap: Callable[[Instruction], bool]
    cheap: str
    arguments: tuple[str, ...]
    preserved: frozenset[str]
    sp: str
    loads: frozenset[str]
    landing: str
    find_jumps: FindJumps


# psABI x86-64 §3.2.1, §3.2.3. The return address must still be at (rsp), where a return probe replaces it.
X86_64 = ProbedArch(
    elf_machine=EM_X86_64,
    decode=decode_x86_64,
    is_cheap=x86_64.is_emulated,
    cheap="emulated",
    arguments=("rdi", "rsi", "rdx", "rcx", "r8", "r9"),
    preserved=frozenset(("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15")),
    sp="rsp",
    loads=frozenset(("mov",)),
    landing="endbr64",
    find_jumps=x86_64.find_jumps,
)

# AAPCS64 §6.1.1. The return address must still be in x30 and unsigned, where a return probe replaces it.
ARM64 = ProbedArch(
    elf_machine=EM_AARCH64,
    decode=decode_arm64,
    is_cheap=arm64.is_simulated,
    cheap="simulated",
    arguments=("x0", "x1", "x2", "x3", "x4", "x5"),
    preserved=frozenset((*(f"x{n}" for n in range(19, 31)), "sp")),
    sp="sp",
    loads=frozenset(("ldr", "ldar", "ldapr", "ldapur")),  # the last three load atomics
    landing="bti",
    find_jumps=arm64.find_jumps,
)

PROBED_ARCHES = {arch.elf_machine: arch for arch in (X86_64, ARM64)}
