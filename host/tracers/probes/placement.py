"""Choice of the instruction for a function's entry probe.

1. The kernel emulates a few instructions under a uprobe and single-steps all others, which costs one exception more.
2. So the probe goes to the first emulated instruction of the function's first 64 bytes that is equivalent to the entry.
3. Equivalent: every call reaches it exactly once, and no instruction before it writes memory, an argument, a preserved
   register or the stack pointer. Of free() only, a branch that leads to a return without any effect may be passed.
4. No jump, from inside or outside of the function, may lead between the function's start and the probe.
5. If any of this cannot be proved, the probe stays at offset 0, and `doctor` and -v show the reason.

Which instructions the kernel emulates depends on the architecture: arch.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.tracers.probes.arch import ProbedArch
from memleak_android.unwind.code.disassembly import Flow, Instruction

SINGLE_STEPPED = "single-stepped"

_COMPUTES = ("add", "sub")
_POINTER_LOADS = ("mov", "ldr", "ldar", "ldapr", "ldapur")  # the last three load atomics
_STACK_POINTERS = ("rsp", "sp")
_OF_EPILOGUES = ("add", "ldp", "ldr", "leave", "pop")
FUNCTION_BYTES_MAX = 64 << 10  # functions of allocators have some hundred
_RETURN_PATH_INSTRUCTIONS = 16
_REACH = 64  # bytes from the start: a probe goes no further


@dataclass(frozen=True, slots=True)
class Placement:
    """offset: bytes from the function's start. reason: why there, for `doctor` and -v."""

    offset: int
    cost: str  # SINGLE_STEPPED or ProbedArch.cheap
    reason: str


def place_entry(
    arch: ProbedArch,
    code: bytes,
    arguments: frozenset[str],
    *,
    skip_no_op: bool = False,
    jumped_to: Iterable[int] = (),
) -> Placement:
    """Placement in the function with the bytes `code`.

    arguments: registers that the probe reads.
    skip_no_op: prefer an instruction behind a branch to a return without effect (free(NULL)). The probe misses such calls.
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
    chosen = candidates[0]
    return Placement(chosen.address, arch.cheap, f"`{chosen}` is {arch.cheap}")


def jumps_from_outside(
    arch: ProbedArch, text: NDArray[np.uint8], functions: Sequence[tuple[int, int]]
) -> list[set[int]]:
    """For each function text[start:end]: the offsets in its first _REACH bytes that direct jumps outside of it target.

    Every address outside at which an instruction could begin is tried. A false hit only keeps the probe at offset 0.
    A hit inside another of the functions counts only if an instruction of that function begins there.
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
            boundaries[other] = {instruction.address for instruction in arch.decode(code, other[0])}
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
    """Cheap instructions equivalent to the entry, those behind an exit without effect, and why the walk ended."""
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
    """Why a probe must not be behind this instruction, "" if it may be."""
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
    """Whether the code at target returns without call, jump or write, so it cannot release or allocate."""
    start = next((i for i, item in enumerate(instructions) if item.address == target), None)
    if start is None:
        return False
    for instruction in instructions[start : start + _RETURN_PATH_INSTRUCTIONS]:
        if instruction.flow is Flow.RETURN:
            return True
        if instruction.flow is not Flow.NEXT or instruction.writes_memory or arch.sp in instruction.writes:
            return False
    return False


def _targets(instructions: list[Instruction]) -> set[int]:
    return {item.target for item in instructions if item.target is not None}


def unprovable(arch: ProbedArch, code: bytes, instructions: list[Instruction]) -> str:
    """Why the decoded function cannot be analysed as a whole, "" if it can."""
    start = instructions[0].address
    if len(code) > FUNCTION_BYTES_MAX:
        return f"it is longer than {FUNCTION_BYTES_MAX} bytes"
    if instructions[-1].end - start != len(code):
        return f"+{instructions[-1].end - start:#x} cannot be decoded"
    for i, item in enumerate(instructions):
        if item.flow is Flow.JUMP and item.is_indirect and not _goes_through_pointer(instructions[:i], item):
            return f"`{item}` at +{item.address - start:#x} may go anywhere in it"
    return ""


def is_tail_call(before: list[Instruction], jump: Instruction) -> bool:
    """Whether an indirect `jump` leaves the function. The jump of a switch computes or indexes its target, and keeps the frame."""
    source = _source(before, jump)
    if source is None or _gives_frame_back(before):
        return True
    return source.mnemonic not in _COMPUTES and not any(one.index for one in source.memory)


def _gives_frame_back(before: list[Instruction]) -> bool:
    """Whether the last change of sp, on the straight way to the jump, is an epilogue's."""
    for item in reversed(before):
        if item.flow is not Flow.NEXT:
            return False
        if not item.writes.isdisjoint(_STACK_POINTERS):
            return item.mnemonic in _OF_EPILOGUES
    return False


def _source(before: list[Instruction], jump: Instruction) -> Instruction | None:
    """The instruction that gives the target, if it is not an argument."""
    if jump.memory:
        return jump
    return next((item for item in reversed(before) if item.writes & jump.reads), None)


def _goes_through_pointer(before: list[Instruction], jump: Instruction) -> bool:
    """Surely: the target is loaded from memory."""
    source = _source(before, jump)
    is_loaded = (
        source is not None and bool(source.memory) and (source is jump or source.mnemonic in _POINTER_LOADS)
    )
    return is_loaded and is_tail_call(before, jump)
