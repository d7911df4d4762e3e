"""Where in a function's straight-line entry an entry probe costs least.

The kernel emulates a few instructions under a uprobe and single-steps all others out of line, which takes
two exceptions more (arch/x86/kernel/uprobes.c: branch_setup_xol_ops, push_setup_xol_ops). So the probe is
moved to the first emulated instruction that is provably equivalent to the entry: reached once by every
call that matters, with arguments, callee-saved registers and stack pointer as they were at entry.
What cannot be proved stays at offset 0, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.disassembly import Flow, Instruction, decode_x86_64

EMULATED = "emulated"
SINGLE_STEPPED = "single-stepped"

# psABI x86-64 §3.2.1: what a function preserves. The evidence of a probe must hold the caller's values, and
# the return address must still be at (rsp), where a return probe exchanges it.
PRESERVED = frozenset(("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15"))

FUNCTION_BYTES_MAX = 64 << 10  # functions of allocators have some hundred
_RETURN_PATH_INSTRUCTIONS = 16
_REACH = 64  # bytes from the start in which jumps from outside are looked for
_CHUNK_BYTES = 4 << 20  # of text looked through at a time, to bound the memory taken


@dataclass(frozen=True, slots=True)
class Placement:
    """offset: bytes from the function's first one. reason: why there, for `doctor` and -v."""

    offset: int
    cost: str  # EMULATED | SINGLE_STEPPED ("simulated" is arm64's)
    reason: str


def place_entry(
    code: bytes, arguments: frozenset[str], *, skip_no_op: bool = False, jumped_to: Iterable[int] = ()
) -> Placement:
    """Placement in the function whose bytes are `code`: all of them, by its symbol's size.

    arguments: registers that the probe reads. skip_no_op: prefer a place behind a branch that leads straight
    to a return without any effect (free(NULL)); such calls are then not seen.
    jumped_to: offsets from the function's start to which code outside of it jumps.
    """
    instructions = list(decode_x86_64(code[:FUNCTION_BYTES_MAX]))
    if not instructions:
        return Placement(0, SINGLE_STEPPED, "its bytes are not known or not code")
    first_cost = EMULATED if is_emulated(instructions[0]) else SINGLE_STEPPED
    if reason := _unprovable(code, instructions):
        return Placement(0, first_cost, reason)
    candidates, behind_exit, stop = _walk(instructions, arguments, {*jumped_to, *_targets(instructions)})
    if skip_no_op and behind_exit:
        candidates = behind_exit
    if not candidates:
        return Placement(0, SINGLE_STEPPED, stop)
    place = candidates[0]
    return Placement(place.address, EMULATED, f"`{place}` is emulated")


def is_emulated(instruction: Instruction) -> bool:
    """Whether the kernel emulates it under a uprobe (4.15 on for push; jumps, call and nop since 3.15).

    Later additions (multi-byte nop, sub of rsp) are left out: a kernel without them would single-step.
    """
    code = instruction.code
    if code in (b"\x90", b"\x66\x90"):
        return True
    if len(code) == 1 or (len(code) == 2 and code[0] == 0x41):
        return 0x50 <= code[-1] <= 0x57
    if code[0] == 0x0F:
        return 0x80 <= code[1] <= 0x8F
    return code[0] in (0xE8, 0xE9, 0xEB) or 0x70 <= code[0] <= 0x7F


def jumps_from_outside(text: NDArray[np.uint8], functions: Sequence[tuple[int, int]]) -> list[set[int]]:
    """For each function text[start:end]: offsets from its start to which direct jumps outside of it go.

    Looked for in the first bytes behind the start, which is as far as a probe is moved. Every byte position
    outside is tried as the start of a jump, so nothing is missed; a false hit only keeps a probe where it is.
    What looks like a jump inside another of the functions counts only where that one has an instruction.
    """
    if not functions:
        return []
    low = min(start for start, _ in functions)
    source, target = find_jumps(text, low, max(start + _REACH for start, _ in functions))
    boundaries: dict[tuple[int, int], set[int]] = {}

    def is_instruction(at: int) -> bool:
        other = next(((start, end) for start, end in functions if start <= at < end), None)
        if other is None or other[1] - other[0] > FUNCTION_BYTES_MAX:
            return True
        if other not in boundaries:
            code = text[other[0] : other[1]].tobytes()
            boundaries[other] = {one.address for one in decode_x86_64(code, other[0])}
        return not boundaries[other].isdisjoint((at, at - 1))  # 0f 8x: found by its second byte

    found = []
    for start, end in functions:
        is_hit = (target > start) & (target < min(end, start + _REACH)) & ((source < start) | (source >= end))
        pairs = zip(source[is_hit].tolist(), target[is_hit].tolist(), strict=True)
        found.append({goal - start for at, goal in pairs if is_instruction(at)})
    return found


def find_jumps(text: NDArray[np.uint8], low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources (at the opcode's last byte) and targets of what looks like a direct jump or call to [low, high).

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
    return (
        np.concatenate([*sources, start + short[is_hit]]),
        np.concatenate([*targets, goal[is_hit]]),
    )


def _near_jumps(part: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    opcode = part[:-4]
    is_jump = (opcode == 0xE8) | (opcode == 0xE9)
    is_jump[1:] |= (opcode[:-1] == 0x0F) & ((opcode[1:] & 0xF0) == 0x80)
    at = np.flatnonzero(is_jump)
    displacement = np.stack([part[at + 1 + i] for i in range(4)], axis=1).view("<i4")[:, 0]
    return at, at + 5 + displacement


def _walk(
    instructions: list[Instruction], arguments: frozenset[str], jumped_to: set[int]
) -> tuple[list[Instruction], list[Instruction], str]:
    """Emulated instructions equivalent to the entry, those of them behind an exit without effect, and
    why the walk ended."""
    candidates: list[Instruction] = []
    behind_exit: list[Instruction] = []
    passed_exit = False
    first_jumped_to = min((offset for offset in jumped_to if offset > 0), default=None)
    for instruction in instructions:
        if instruction.address >= _REACH:
            break
        if first_jumped_to is not None and first_jumped_to <= instruction.address:
            return candidates, behind_exit, f"+{first_jumped_to:#x} is jumped to"
        if is_emulated(instruction):
            candidates.append(instruction)
            if passed_exit:
                behind_exit.append(instruction)
        if reason := _obstacle(instruction, arguments):
            return candidates, behind_exit, reason
        if instruction.flow is Flow.CONDITIONAL:
            if not _has_no_effect(instructions, instruction.target):
                return candidates, behind_exit, f"`{instruction}` may skip what follows"
            passed_exit = True
    return candidates, behind_exit, f"no instruction in its first {_REACH} bytes is emulated"


def _obstacle(instruction: Instruction, arguments: frozenset[str]) -> str:
    """Why a probe may not stand behind this instruction, "" when it may."""
    if instruction.flow not in (Flow.NEXT, Flow.CONDITIONAL):
        return f"`{instruction}` ends its straight-line entry"
    if clobbered := instruction.writes & arguments:
        return f"`{instruction}` overwrites the argument in {min(clobbered)}"
    if moved := instruction.writes & PRESERVED:
        return f"`{instruction}` changes {min(moved)}"
    if instruction.writes_memory:
        return f"`{instruction}` writes memory"
    return ""


def _has_no_effect(instructions: list[Instruction], target: int | None) -> bool:
    """Whether the code at target returns without call, jump or write: it cannot release or allocate."""
    start = next((i for i, one in enumerate(instructions) if one.address == target), None)
    if start is None:
        return False
    for instruction in instructions[start : start + _RETURN_PATH_INSTRUCTIONS]:
        if instruction.flow is Flow.RETURN:
            return True
        if instruction.flow is not Flow.NEXT or instruction.writes_memory or "rsp" in instruction.writes:
            return False
    return False


def _targets(instructions: list[Instruction]) -> set[int]:
    return {one.target for one in instructions if one.target is not None}


def _unprovable(code: bytes, instructions: list[Instruction]) -> str:
    """Why the function cannot be judged as a whole, "" when it can."""
    if len(code) > FUNCTION_BYTES_MAX:
        return f"it is longer than {FUNCTION_BYTES_MAX} bytes"
    if instructions[-1].end != len(code):
        return f"+{instructions[-1].end:#x} cannot be decoded"
    for i, one in enumerate(instructions):
        if one.flow is Flow.JUMP and one.is_indirect and not _is_tail_call(instructions[:i], one):
            return f"`{one}` at +{one.address:#x} may go anywhere in it"
    return ""


def _is_tail_call(before: list[Instruction], jump: Instruction) -> bool:
    """Tells `jmp *pointer` from the jump of a switch, which computes or indexes its target."""
    source: Instruction | None = jump
    if not jump.memory:
        source = next((one for one in reversed(before) if one.writes & jump.reads), None)
    if source is None or (source is not jump and source.mnemonic != "mov"):
        return False
    return bool(source.memory) and not source.memory[0].index
