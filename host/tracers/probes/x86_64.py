"""x86_64: the instructions that the kernel emulates under a uprobe (arch/x86/kernel/uprobes.c), and direct jumps in code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.code.disassembly import Instruction

_CHUNK_BYTES = 4 << 20  # of text scanned at a time, to bound memory


def is_emulated(instruction: Instruction) -> bool:
    """Whether the kernel emulates it under a uprobe: push_setup_xol_ops() (4.15), branch_setup_xol_ops() (3.15).

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


def find_jumps(text: NDArray[np.uint8], low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
