"""Instructions that are to run at another address: what every architecture's relocation takes and gives.

relocation_arm64.py and relocation_x86_64.py do it. Both move the first instructions of a function to a place from which
the rest of it goes on, and refuse what they cannot prove to do the same there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.unwind.code.disassembly import Flow, Instruction


class CannotRelocate(Exception):
    """Why these instructions must stay where they are; the text names the instruction."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What holds where the instructions run.

    has_guarded_calls: indirect branches must meet a landing pad (BTI; the file's GNU_PROPERTY_AARCH64_FEATURE_1_BTI).
    has_shadow_stack: return addresses are held against a second stack (CET, GCS): a call cannot be imitated.
    """

    has_guarded_calls: bool = False
    has_shadow_stack: bool = False


UNGUARDED = Surroundings()


@dataclass(frozen=True, slots=True)
class Relocated:
    """The moved code, whose end leads on behind the original range.

    starts: where in `code` a thread goes on that stood before instruction i of the original ones. scratch: registers
    that hold nothing there by the psABI and that the moved code may change.
    """

    address: int
    code: bytes
    starts: tuple[int, ...]
    scratch: frozenset[str]


def check_flow(instructions: Sequence[Instruction]) -> None:
    """Only the last one may leave for good; none may go back into the range. Raises CannotRelocate."""
    start, end = instructions[0].address, instructions[-1].end
    for one in instructions:
        if one.flow is Flow.STOP:
            raise CannotRelocate(f"`{one}`: a breakpoint or a trap")
        if one.flow in (Flow.JUMP, Flow.CALL, Flow.RETURN) and one is not instructions[-1]:
            raise CannotRelocate(f"`{one}` comes before the end of what must be moved")
        if one.target is not None and start <= one.target < end:
            raise CannotRelocate(f"`{one}` goes to where the patch is")


@dataclass(frozen=True, slots=True)
class Reference:
    """What an instruction reads, writes (size bytes, at most) or only points at (size 0) relative to the pc."""

    address: int
    size: int

    def touches(self, start: int, end: int) -> bool:
        """Whether it is among these bytes; pointing at the very first of them does no harm."""
        return self.address < end and self.address + max(self.size, 1) > start + (self.size == 0)


def check_reference(one: Instruction, reference: Reference, range_: Sequence[Instruction]) -> None:
    """Raises CannotRelocate where the patch would be seen as data."""
    if reference.touches(range_[0].address, range_[-1].end):
        raise CannotRelocate(f"`{one}` refers to where the patch is")


def signed(value: int, bits: int) -> int:
    """The two's complement number in the low bits of value."""
    value &= (1 << bits) - 1
    return value - ((value >> (bits - 1)) << bits)
