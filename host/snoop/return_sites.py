"""Instructions that leave a function, as probe sites that keep its return address intact.

A return probe replaces the return address by the kernel's trampoline. Unwinders do not know it, so an exception that passes
such a frame ends the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.placement import FUNCTION_BYTES_MAX, is_tail_call
from memleak_android.unwind.code.disassembly import Flow, Instruction

_SITES_MAX = 64


@dataclass(frozen=True, slots=True)
class ReturnSites:
    """File offsets. refusal: why they are unknown, "" if known; with a refusal there are none."""

    returns: tuple[int, ...] = ()
    tails: tuple[int, ...] = ()
    refusal: str = ""


def calls_nothing(elf: ElfFile, file_offset: int, size: int) -> bool:
    """Tests whether the function calls nothing, so that no exception can pass it."""
    instructions = _decode(elf, file_offset, size)
    if not instructions or instructions[-1].end != file_offset + size:
        return False
    inside = range(file_offset, file_offset + size)
    return not any(
        each.flow is Flow.CALL or (each.flow is Flow.CONDITIONAL and each.target not in inside)
        for each in instructions
    )


def find_return_sites(elf: ElfFile, file_offset: int, size: int, parts: Sequence[range]) -> ReturnSites:
    """Finds the instructions that leave a function.

    parts: file offsets of its code elsewhere (`name.cold`).
    """
    if not 0 < size <= FUNCTION_BYTES_MAX:
        return ReturnSites(refusal="its size is unknown")
    own = [range(file_offset, file_offset + size), *parts]
    returns: list[int] = []
    tails: list[int] = []
    for piece in own:
        instructions = _decode(elf, piece.start, len(piece))
        if not instructions or instructions[-1].end != piece.stop:
            return ReturnSites(refusal="it cannot be decoded")
        for i, instruction in enumerate(instructions):
            leaves = _leaves(elf, own, instructions[:i], instruction)
            if leaves and instruction.flow is Flow.CONDITIONAL:
                return ReturnSites(
                    refusal=f"`{instruction.mnemonic}` is a conditional jump to another function"
                )
            if instruction.flow is Flow.RETURN:
                returns.append(instruction.address)
            elif leaves:
                tails.append(instruction.address)
    if len(returns) + len(tails) > _SITES_MAX:
        return ReturnSites(refusal=f"it has {len(returns) + len(tails)} exits")
    if not returns and not tails:
        return ReturnSites(refusal="it never returns")
    return ReturnSites(tuple(returns), tuple(tails))


def _decode(elf: ElfFile, file_offset: int, size: int) -> list[Instruction]:
    """Decodes with file offsets as addresses: jumps stay inside one segment."""
    if size > FUNCTION_BYTES_MAX:
        return []
    return list(PROBED_ARCHES[elf.machine].decode(elf.slice(file_offset, size), file_offset))


def _leaves(elf: ElfFile, own: Sequence[range], before: list[Instruction], one: Instruction) -> bool:
    if one.flow not in (Flow.JUMP, Flow.CONDITIONAL):
        return False
    if one.target is not None:
        return not any(one.target in piece for piece in own)
    return is_tail_call(PROBED_ARCHES[elf.machine], before, one)
