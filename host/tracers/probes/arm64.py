"""arm64: the instructions that the kernel simulates under a uprobe, and direct jumps in code.

arch/arm64/kernel/probes/decode-insn.c simulates direct branches, branches to a register, adr and adrp. It single-steps the
rest, before 6.13 a nop too, and refuses literal loads, exclusives and most system instructions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.code.disassembly import Instruction

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


def is_simulated(instruction: Instruction) -> bool:
    """Whether every kernel version simulates it."""
    word = int.from_bytes(instruction.code, "little")
    return any(word & mask == value for value, mask in _SIMULATED)


def find_jumps(text: NDArray[np.uint8], low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
