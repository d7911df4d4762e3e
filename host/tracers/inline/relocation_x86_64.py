"""Moves x86-64 instructions to another address.

An instruction is moved if x86_encoding.py and the disassembler agree on its length and on whether it is relative to
rip. Displacements are rewritten if the new address is in reach (±2 GiB); 8-bit branches grow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from memleak_android.host.tracers.inline.relocation import (
    CannotRelocate,
    Reference,
    Relocated,
    Surroundings,
    check_flow,
    check_reference,
    signed,
)
from memleak_android.host.tracers.inline.x86_encoding import Encoding, parse
from memleak_android.unwind.code.disassembly import Flow, Instruction

ENDBR64 = bytes.fromhex("f30f1efa")
_JUMP_MEMORY = bytes.fromhex("3eff25")  # notrack: the target needs no endbr64
_PUSH_MEMORY = bytes.fromhex("ff35")
_LEA = b"\x8d"


def relocate_x86_64(
    instructions: Sequence[Instruction], address: int, surroundings: Surroundings
) -> Relocated:
    """Moves consecutive instructions to `address`. Raises CannotRelocate."""
    check_flow(instructions)
    code = _Code(address, surroundings)
    code.data += ENDBR64  # called through a pointer
    starts: list[int] = []
    for instruction in instructions:
        starts.append(len(code.data) if starts else 0)
        _move(code, instruction, instructions)
    if instructions[-1].flow not in (Flow.JUMP, Flow.CALL, Flow.RETURN):
        code.jump(instructions[-1].end)
    return Relocated(address, code.finish(), tuple(starts), frozenset())


def absolute_jump(_: int, target: int) -> bytes:
    """A jump of any distance in 14 bytes: jmp *0(%rip); .quad target."""
    return bytes.fromhex("ff2500000000") + target.to_bytes(8, "little")


def direct_jump(at: int, target: int) -> bytes | None:
    """`jmp rel32` to target for the address `at`, None if out of reach."""
    displacement = _displacement(at + 5, target)
    return None if displacement is None else b"\xe9" + displacement


@dataclass
class _Code:
    """Appended bytes, with out-of-line jumps and 8-byte literals after them."""

    address: int
    surroundings: Surroundings
    data: bytearray = field(default_factory=bytearray)
    literals: list[tuple[int, int]] = field(default_factory=list)  # offset of its displacement, value
    exits: list[tuple[int, int]] = field(default_factory=list)  # offset of its displacement, target

    @property
    def here(self) -> int:
        return self.address + len(self.data)

    def through_literal(self, opcode: bytes, value: int) -> None:
        self.data += opcode
        self.literals.append((len(self.data), value))
        self.data += bytes(4)

    def jump(self, target: int) -> None:
        direct = direct_jump(self.here, target)
        if direct is not None:
            self.data += direct
        else:
            self.through_literal(_JUMP_MEMORY, target)

    def jump_when(self, opcode: bytes, target: int) -> None:
        """opcode: of a conditional jump with 32 bits of displacement."""
        displacement = _displacement(self.here + len(opcode) + 4, target)
        self.data += opcode
        if displacement is None:
            self.exits.append((len(self.data), target))
        self.data += displacement or bytes(4)

    def finish(self) -> bytes:
        for at, target in self.exits:
            self._refer(at)
            self.jump(target)
        self.data += b"\xcc" * (-len(self.data) % 8)
        for at, value in self.literals:
            self._refer(at)
            self.data += value.to_bytes(8, "little")
        return bytes(self.data)

    def _refer(self, at: int) -> None:
        """Points the displacement at `at`, an instruction's last bytes, to here."""
        self.data[at : at + 4] = (len(self.data) - at - 4).to_bytes(4, "little")


def _displacement(end: int, target: int) -> bytes | None:
    distance = target - end
    return distance.to_bytes(4, "little", signed=True) if -(1 << 31) <= distance < 1 << 31 else None


def reference_x86_64(instruction: Instruction) -> Reference | None:
    """The memory that a rip-relative operand refers to. No operand is longer than 64 bytes."""
    encoding = parse(instruction.code)
    if encoding is not None and encoding.size == instruction.size:
        if encoding.displacement is None:
            return None
        at = encoding.displacement
        displacement = int.from_bytes(instruction.code[at : at + 4], "little", signed=True)
        return Reference(instruction.end + displacement, 0 if encoding.opcode == _LEA else 64)
    relative = [operand for operand in instruction.memory if operand.base == "rip"]
    return Reference(instruction.end + relative[0].displacement, 64) if relative else None


def _move(code: _Code, instruction: Instruction, range_: Sequence[Instruction]) -> None:
    encoding, reference = parse(instruction.code), reference_x86_64(instruction)
    if encoding is None or encoding.size != instruction.size:
        raise CannotRelocate(f"`{instruction}` is not known to move")
    if (reference is not None) != _names_rip(instruction):
        raise CannotRelocate(f"`{instruction}`: two decoders differ on whether it is relative to rip")
    if reference is not None:
        check_reference(instruction, reference, range_)
        _move_relative(code, instruction, encoding, reference.address)
    elif instruction.is_branch and instruction.target is not None:
        _move_branch(code, instruction, encoding)
    elif instruction.flow in (Flow.CALL, Flow.SYSTEM):
        raise CannotRelocate(f"`{instruction}` is not known to move")
    else:
        code.data += instruction.code


def _names_rip(instruction: Instruction) -> bool:
    """By the disassembler, which lists no memory operand of lea."""
    in_memory = any("rip" in (operand.base, operand.index) for operand in instruction.memory)
    return in_memory or (instruction.mnemonic == "lea" and "rip" in instruction.operands)


def _move_relative(code: _Code, instruction: Instruction, encoding: Encoding, target: int) -> None:
    """In reach, the displacement is adjusted. Beyond, only an address can be loaded without a spare register."""
    at = encoding.displacement or 0
    displacement = _displacement(code.here + instruction.size, target)
    if displacement is not None:
        code.data += instruction.code[:at] + displacement + instruction.code[at + 4 :]
        return
    is_whole = not encoding.prefixes and encoding.rex & 8
    if encoding.opcode != _LEA or not is_whole:
        raise CannotRelocate(f"`{instruction}`: {target:#x} is out of reach from {code.here:#x}")
    register, high = encoding.reg, encoding.rex >> 2 & 1
    code.data += bytes((0x48 | high, 0xB8 | register)) + (target & (1 << 64) - 1).to_bytes(8, "little")


def _move_branch(code: _Code, instruction: Instruction, encoding: Encoding) -> None:
    opcode, width = encoding.opcode, encoding.immediate
    target = instruction.end + signed(int.from_bytes(instruction.code[-width:], "little"), 8 * width)
    if instruction.target != target & (1 << 64) - 1:
        raise CannotRelocate(f"`{instruction}`: the disassembler sees another target than {target:#x}")
    if opcode == b"\xe8":
        if code.surroundings.has_shadow_stack:
            raise CannotRelocate(f"`{instruction}`: calls cannot be moved under a shadow stack")
        code.through_literal(_PUSH_MEMORY, instruction.end)  # it returns to the original code
        code.jump(target)
    elif opcode in (b"\xe9", b"\xeb"):
        code.jump(target)
    elif 0xE0 <= opcode[0] <= 0xE3:
        _move_loop(code, instruction, target)
    else:
        code.jump_when(bytes((0x0F, 0x80 | opcode[-1] & 15)), target)


def _move_loop(code: _Code, instruction: Instruction, target: int) -> None:
    """loop and jrcxz have no longer form: they jump over a jump over a jump."""
    onward = _Code(code.here + 4, code.surroundings)
    onward.jump(target)
    code.data += instruction.code[:-1] + b"\x02\xeb" + bytes((len(onward.data),))
    code.jump(target)
