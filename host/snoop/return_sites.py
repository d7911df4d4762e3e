"""Where a function is left, for those whose return addresses must stay as they are.

A return probe exchanges the return address on the stack for the kernel's trampoline, which no unwinder knows: an exception
that passes such a frame ends the program. Probes on the instructions that leave the function need no such thing.
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
    """Offsets in the file. refusal: why they are not all known, "" when they are; then there are none."""

    returns: tuple[int, ...] = ()
    tails: tuple[int, ...] = ()
    refusal: str = ""


def calls_nothing(elf: ElfFile, file_offset: int, size: int) -> bool:
    """Whether no exception can pass the function, because it calls nothing that could throw one."""
    instructions = _decode(elf, file_offset, size)
    if not instructions or instructions[-1].end != file_offset + size:
        return False
    inside = range(file_offset, file_offset + size)
    return not any(
        one.flow is Flow.CALL or (one.flow is Flow.CONDITIONAL and one.target not in inside)
        for one in instructions
    )


def find_return_sites(elf: ElfFile, file_offset: int, size: int, parts: Sequence[range]) -> ReturnSites:
    """parts: file offsets of code that belongs to the function and lies elsewhere (`name.cold`)."""
    if not 0 < size <= FUNCTION_BYTES_MAX:
        return ReturnSites(refusal="its size is not known")
    own = [range(file_offset, file_offset + size), *parts]
    returns: list[int] = []
    tails: list[int] = []
    for piece in own:
        instructions = _decode(elf, piece.start, len(piece))
        if not instructions or instructions[-1].end != piece.stop:
            return ReturnSites(refusal="it cannot be decoded")
        for i, one in enumerate(instructions):
            leaves = _leaves(elf, own, instructions[:i], one)
            if leaves and one.flow is Flow.CONDITIONAL:
                return ReturnSites(refusal=f"`{one.mnemonic}` jumps to another function under a condition")
            if one.flow is Flow.RETURN:
                returns.append(one.address)
            elif leaves:
                tails.append(one.address)
    if len(returns) + len(tails) > _SITES_MAX:
        return ReturnSites(refusal=f"it is left at {len(returns) + len(tails)} places")
    if not returns and not tails:
        return ReturnSites(refusal="it never returns")
    return ReturnSites(tuple(returns), tuple(tails))


def _decode(elf: ElfFile, file_offset: int, size: int) -> list[Instruction]:
    """Addresses are offsets in the file: jumps stay inside one segment."""
    if size > FUNCTION_BYTES_MAX:
        return []
    return list(PROBED_ARCHES[elf.machine].decode(elf.slice(file_offset, size), file_offset))


def _leaves(elf: ElfFile, own: Sequence[range], before: list[Instruction], one: Instruction) -> bool:
    if one.flow not in (Flow.JUMP, Flow.CONDITIONAL):
        return False
    if one.target is not None:
        return not any(one.target in piece for piece in own)
    return is_tail_call(PROBED_ARCHES[elf.machine], before, one)
