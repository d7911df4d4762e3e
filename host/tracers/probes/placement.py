"""Where in a function's straight-line entry an entry probe costs least.

The kernel does the work of a few instructions itself under a uprobe and single-steps all others out of line, which
takes an exception more. So the probe is moved to the first such instruction that is provably equivalent to the entry:
reached once by every call that matters, with arguments, callee-saved registers, stack pointer and return address as
they were at entry. What cannot be proved stays at offset 0, with the reason. Which instructions those are is the
architecture's: probed_arch.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.tracers.probes.arch import ProbedArch
from memleak_android.unwind.code.disassembly import Flow, Instruction

SINGLE_STEPPED = "single-stepped"

FUNCTION_BYTES_MAX = 64 << 10  # functions of allocators have some hundred
_RETURN_PATH_INSTRUCTIONS = 16
_REACH = 64  # bytes from the start in which jumps from outside are looked for


@dataclass(frozen=True, slots=True)
class Placement:
    """offset: bytes from the function's first one. reason: why there, for `doctor` and -v."""

    offset: int
    cost: str  # SINGLE_STEPPED, or the architecture's word for what the kernel does itself
    reason: str


def place_entry(
    arch: ProbedArch,
    code: bytes,
    arguments: frozenset[str],
    *,
    skip_no_op: bool = False,
    jumped_to: Iterable[int] = (),
) -> Placement:
    """Placement in the function whose bytes are `code`: all of them, by its symbol's size.

    arguments: registers that the probe reads. skip_no_op: prefer a place behind a branch that leads straight
    to a return without any effect (free(NULL)); such calls are then not seen.
    jumped_to: offsets from the function's start to which code outside of it jumps.
    """
    instructions = list(arch.decode(code[:FUNCTION_BYTES_MAX], 0))
    if not instructions:
        return Placement(0, SINGLE_STEPPED, "its bytes are not known or not code")
    first_cost = arch.cheap if arch.is_cheap(instructions[0]) else SINGLE_STEPPED
    if reason := unprovable(arch, code, instructions):
        return Placement(0, first_cost, reason)
    candidates, behind_exit, stop = _walk(
        arch, instructions, arguments, {*jumped_to, *_targets(instructions)}
    )
    if skip_no_op and behind_exit:
        candidates = behind_exit
    if not candidates:
        return Placement(0, SINGLE_STEPPED, stop)
    place = candidates[0]
    return Placement(place.address, arch.cheap, f"`{place}` is {arch.cheap}")


def jumps_from_outside(
    arch: ProbedArch, text: NDArray[np.uint8], functions: Sequence[tuple[int, int]]
) -> list[set[int]]:
    """For each function text[start:end]: offsets from its start to which direct jumps outside of it go.

    Looked for in the first bytes behind the start, which is as far as a probe is moved. Every place outside where an
    instruction could begin is tried, so nothing is missed; a false hit only keeps a probe where it is.
    What looks like a jump inside another of the functions counts only where that one has an instruction.
    """
    if not functions:
        return []
    low = min(start for start, _ in functions)
    source, target = arch.find_jumps(text, low, max(start + _REACH for start, _ in functions))
    boundaries: dict[tuple[int, int], set[int]] = {}

    def is_instruction(at: int) -> bool:
        other = next(((start, end) for start, end in functions if start <= at < end), None)
        if other is None or other[1] - other[0] > FUNCTION_BYTES_MAX:
            return True
        if other not in boundaries:
            code = text[other[0] : other[1]].tobytes()
            boundaries[other] = {one.address for one in arch.decode(code, other[0])}
        return not boundaries[other].isdisjoint((at, at - 1))  # 0f 8x: found by its second byte

    found = []
    for start, end in functions:
        is_hit = (target > start) & (target < min(end, start + _REACH)) & ((source < start) | (source >= end))
        pairs = zip(source[is_hit].tolist(), target[is_hit].tolist(), strict=True)
        found.append({goal - start for at, goal in pairs if is_instruction(at)})
    return found


def _walk(
    arch: ProbedArch, instructions: list[Instruction], arguments: frozenset[str], jumped_to: set[int]
) -> tuple[list[Instruction], list[Instruction], str]:
    """Cheap instructions equivalent to the entry, those of them behind an exit without effect, and why the walk
    ended."""
    candidates: list[Instruction] = []
    behind_exit: list[Instruction] = []
    passed_exit = False
    first_jumped_to = min((offset for offset in jumped_to if offset > 0), default=None)
    for instruction in instructions:
        if instruction.address >= _REACH:
            break
        if first_jumped_to is not None and first_jumped_to <= instruction.address:
            return candidates, behind_exit, f"+{first_jumped_to:#x} is jumped to"
        if arch.is_cheap(instruction):
            candidates.append(instruction)
            if passed_exit:
                behind_exit.append(instruction)
        if reason := _obstacle(arch, instruction, arguments):
            return candidates, behind_exit, reason
        if instruction.flow is Flow.CONDITIONAL:
            if not _has_no_effect(arch, instructions, instruction.target):
                return candidates, behind_exit, f"`{instruction}` may skip what follows"
            passed_exit = True
    return candidates, behind_exit, f"no instruction in its first {_REACH} bytes is {arch.cheap}"


def _obstacle(arch: ProbedArch, instruction: Instruction, arguments: frozenset[str]) -> str:
    """Why a probe may not stand behind this instruction, "" when it may."""
    if instruction.flow not in (Flow.NEXT, Flow.CONDITIONAL):
        return f"`{instruction}` ends its straight-line entry"
    if clobbered := instruction.writes & arguments:
        return f"`{instruction}` overwrites the argument in {min(clobbered)}"
    if moved := instruction.writes & arch.preserved:
        return f"`{instruction}` changes {min(moved)}"
    if instruction.writes_memory:
        return f"`{instruction}` writes memory"
    return ""


def _has_no_effect(arch: ProbedArch, instructions: list[Instruction], target: int | None) -> bool:
    """Whether the code at target returns without call, jump or write: it cannot release or allocate."""
    start = next((i for i, one in enumerate(instructions) if one.address == target), None)
    if start is None:
        return False
    for instruction in instructions[start : start + _RETURN_PATH_INSTRUCTIONS]:
        if instruction.flow is Flow.RETURN:
            return True
        if instruction.flow is not Flow.NEXT or instruction.writes_memory or arch.sp in instruction.writes:
            return False
    return False


def _targets(instructions: list[Instruction]) -> set[int]:
    return {one.target for one in instructions if one.target is not None}


def unprovable(arch: ProbedArch, code: bytes, instructions: list[Instruction]) -> str:
    """Why the function, decoded from its first byte on, cannot be judged as a whole, "" when it can."""
    start = instructions[0].address
    if len(code) > FUNCTION_BYTES_MAX:
        return f"it is longer than {FUNCTION_BYTES_MAX} bytes"
    if instructions[-1].end - start != len(code):
        return f"+{instructions[-1].end - start:#x} cannot be decoded"
    for i, one in enumerate(instructions):
        if one.flow is Flow.JUMP and one.is_indirect and not is_tail_call(arch, instructions[:i], one):
            return f"`{one}` at +{one.address - start:#x} may go anywhere in it"
    return ""


def is_tail_call(arch: ProbedArch, before: list[Instruction], jump: Instruction) -> bool:
    """Tells a jump through a pointer from the jump of a switch, which computes or indexes its target."""
    source: Instruction | None = jump
    if not jump.memory:
        source = next((one for one in reversed(before) if one.writes & jump.reads), None)
    if source is None or (source is not jump and source.mnemonic not in arch.loads):
        return False
    return bool(source.memory) and not source.memory[0].index
