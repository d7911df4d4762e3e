"""Data about an architecture for the placement of probes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.code.disassembly import Instruction, decode_arm64, decode_x86_64
from memleak_android.unwind.elf_headers import EM_AARCH64, EM_X86_64

FindJumps = Callable[[NDArray[np.uint8], int, int], tuple[NDArray[np.int64], NDArray[np.int64]]]
# value under a mask: b and bl, b.cond, cbz and cbnz, tbz and tbnz, adr and adrp, br, blr, ret (Arm ARM C4.1)
_SIMULATED = (
    (0x14000000, 0x7C000000),
    (0x54000000, 0xFF000010),
    (0x34000000, 0x7E000000),
    (0x36000000, 0x7E000000),
    (0x10000000, 0x1F000000),
    (0xD61F0000, 0xFFFFFC1F),
    (0xD63F0000, 0xFFFFFC1F),
    (0xD65F0000, 0xFFFFFC1F),
)
# value, mask, lowest bit and width of the displacement in words
_DIRECT = (
    (0x14000000, 0x7C000000, 0, 26),
    (0x54000000, 0xFF000000, 5, 19),
    (0x34000000, 0x7E000000, 5, 19),
    (0x36000000, 0x7E000000, 5, 14),
)
_CHUNK_BYTES = 4 << 20  # of text scanned at a time, to bound memory


def is_emulated(instruction: Instruction) -> bool:
    """Whether the kernel emulates it under a uprobe (arch/x86/kernel/uprobes.c: push_setup_xol_ops() since 4.15,
    branch_setup_xol_ops() since 3.15).

    Later additions (multi-byte nop, sub of rsp) are not counted: an older kernel single-steps them.
    """
    code = instruction.code
    if code in (b"\x90", b"\x66\x90"):
        return True
    if len(code) == 1 or (len(code) == 2 and code[0] == 0x41):
        return 0x50 <= code[-1] <= 0x57
    if code[0] == 0x0F:
        return 0x80 <= code[1] <= 0x8F
    return code[0] in (0xE8, 0xE9, 0xEB) or 0x70 <= code[0] <= 0x7F


def find_jumps_x86_64(
    text: NDArray[np.uint8], low: int, high: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources (at the opcode's last byte) and targets of possible direct jumps and calls to [low, high).

    Near jumps end in a displacement of 32 bits, short ones in one of 8 bits.
    """
    sources, targets = [], []
    for first in range(0, len(text), _CHUNK_BYTES):
        part = text[max(0, first - 1) : first + _CHUNK_BYTES + 5]
        at, goal = _near_jumps(part)
        sources.append(at + max(0, first - 1))
        targets.append(goal + max(0, first - 1))
        is_hit = (targets[-1] >= low) & (targets[-1] < high)
        sources[-1], targets[-1] = sources[-1][is_hit], targets[-1][is_hit]
    start = max(0, low - 130)
    around = text[start : high + 130]
    opcode = around[:-1]
    short = np.flatnonzero((opcode == 0xEB) | ((opcode & 0xF0) == 0x70) | ((opcode & 0xFC) == 0xE0))
    goal = start + short + 2 + around[short + 1].view(np.int8)
    is_hit = (goal >= low) & (goal < high)
    return (np.concatenate([*sources, start + short[is_hit]]), np.concatenate([*targets, goal[is_hit]]))


def _near_jumps(part: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    opcode = part[:-4]
    is_jump = (opcode == 0xE8) | (opcode == 0xE9)
    is_jump[1:] |= (opcode[:-1] == 0x0F) & ((opcode[1:] & 0xF0) == 0x80)
    at = np.flatnonzero(is_jump)
    displacement = np.stack([part[at + 1 + i] for i in range(4)], axis=1).view("<i4")[:, 0]
    return at, at + 5 + displacement


def is_simulated(instruction: Instruction) -> bool:
    """Whether every kernel version simulates it under a uprobe.

    arch/arm64/kernel/probes/decode-insn.c simulates direct branches, branches to a register, adr and adrp. It single-steps
    the rest, before 6.13 a nop too, and refuses literal loads, exclusives and most system instructions.
    """
    word = int.from_bytes(instruction.code, "little")
    return any(word & mask == value for value, mask in _SIMULATED)


def find_jumps_arm64(
    text: NDArray[np.uint8], low: int, high: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources and targets of the direct branches and calls to [low, high). text: begins with an instruction."""
    words = text[: len(text) & ~3].view("<u4")
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for value, mask, shift, width in _DIRECT:
        index = np.flatnonzero((words & np.uint32(mask)) == value)
        # shift left, then arithmetically right, to extend the displacement's sign
        aligned = (words[index] << np.uint32(32 - shift - width)).view("<i4") >> (32 - width)
        target = 4 * (index + aligned.astype(np.int64))
        is_hit = (target >= low) & (target < high)
        sources.append(4 * index[is_hit])
        targets.append(target[is_hit])
    return np.concatenate(sources), np.concatenate(targets)


@dataclass(frozen=True, slots=True)
class ProbedArch:
    """One architecture whose code takes uprobes.

    decode: code bytes and address → instructions.
    is_cheap: whether the kernel emulates an instruction under a uprobe.
    cheap: the kernel's word for that.
    arguments: registers of integer arguments.
    preserved: registers that hold the caller's values at the entry, the return address included.
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
    landing: str
    find_jumps: FindJumps


# psABI x86-64 §3.2.1, §3.2.3. The return address must still be at (rsp), where a return probe replaces it.
X86_64 = ProbedArch(
    elf_machine=EM_X86_64,
    decode=decode_x86_64,
    is_cheap=is_emulated,
    cheap="emulated",
    arguments=("rdi", "rsi", "rdx", "rcx", "r8", "r9"),
    preserved=frozenset(("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15")),
    sp="rsp",
    landing="endbr64",
    find_jumps=find_jumps_x86_64,
)

# AAPCS64 §6.1.1. The return address must still be in x30 and unsigned, where a return probe replaces it.
ARM64 = ProbedArch(
    elf_machine=EM_AARCH64,
    decode=decode_arm64,
    is_cheap=is_simulated,
    cheap="simulated",
    arguments=("x0", "x1", "x2", "x3", "x4", "x5"),
    preserved=frozenset((*(f"x{n}" for n in range(19, 31)), "sp")),
    sp="sp",
    landing="bti",
    find_jumps=find_jumps_arm64,
)

PROBED_ARCHES = {arch.elf_machine: arch for arch in (X86_64, ARM64)}
