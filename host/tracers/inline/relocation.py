"""Relocation of instructions to another address: inputs and results, shared by all architectures.

relocation_arm64.py and relocation_x86_64.py implement it. Both move the first instructions of a function and refuse those
that are not proved to behave the same at the new address.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.unwind.code.disassembly import Flow, Instruction


class CannotRelocate(Exception):
    """Why these instructions cannot be moved; the text names the instruction."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Conditions of the process.

    has_guarded_calls: indirect branches need a landing pad (BTI; the file's GNU_PROPERTY_AARCH64_FEATURE_1_BTI).
    has_shadow_stack: return addresses are checked against a second stack (CET, GCS), so a call cannot be imitated.
    """

    has_guarded_calls: bool = False
    has_shadow_stack: bool = False


UNGUARDED = Surroundings()


@dataclass(frozen=True, slots=True)
class Relocated:
    """The moved code, whose end continues after the original range.

    starts: offset in `code` for a thread that was before original instruction i.
    scratch: registers that are free there by the psABI and that the moved code may change.
    """

    address: int
    code: bytes
    starts: tuple[int, ...]
    scratch: frozenset[str]


def check_flow(instructions: Sequence[Instruction]) -> None:
    """Only the last instruction may leave unconditionally; none may jump back into the range. Raises CannotRelocate."""
    start, end = instructions[0].address, instructions[-1].end
    for instruction in instructions:
        if instruction.flow is Flow.STOP:
            raise CannotRelocate(f"`{instruction}`: a breakpoint or a trap")
        if instruction.flow in (Flow.JUMP, Flow.CALL, Flow.RETURN) and instruction is not instructions[-1]:
            raise CannotRelocate(f"`{instruction}` comes before the end of what must be moved")
        if instruction.target is not None and start <= instruction.target < end:
            raise CannotRelocate(f"`{instruction}` goes to where the patch is")


@dataclass(frozen=True, slots=True)
class Reference:
    """Memory that an instruction reads, writes (at most size bytes) or only points at (size 0) relative to the pc."""

    address: int
    size: int

    def touches(self, start: int, end: int) -> bool:
        """Whether it overlaps these bytes. Pointing at the first of them is harmless."""
        return self.address < end and self.address + max(self.size, 1) > start + (self.size == 0)


def check_reference(instruction: Instruction, reference: Reference, range_: Sequence[Instruction]) -> None:
    """Raises CannotRelocate if the instruction would read the patch as data."""
    if reference.touches(range_[0].address, range_[-1].end):
        raise CannotRelocate(f"`{instruction}` refers to where the patch is")


def signed(value: int, bits: int) -> int:
    """The two's complement number in the low bits of value."""
    value &= (1 << bits) - 1
    return value - ((value >> (bits - 1)) << bits)
