"""Moves A64 instructions to another address.

Encodings (Arm ARM C4.1), not the disassembler, decide which forms depend on the pc: all of "Branches,
exception generating and system instructions", "PC-rel. addressing" and "Load register (literal)" are listed below or
refused, as are later ones elsewhere (FEAT_PAuth_LR). All others are copied.
"""

from collections.abc import Callable, Sequence

from memleak_android.host.tracers.inline.relocation import (
    CannotRelocate,
    Reference,
    Relocated,
    Surroundings,
    check_flow,
    check_reference,
    signed,
)
from memleak_android.unwind.code.disassembly import Flow, Instruction

NOP = 0xD503201F
BTI_C = 0xD503245F
B_REACH = 1 << 27
_LINK = 30

# AAPCS64 §6.1.1: veneers may use x16 and x17 between a call and the callee's first instruction, so
# they are free at a function's entry.
_VENEER_REGISTERS = (17, 16)

# Hints with the same effect at any address: nop … sev, xpaclri, pac and aut with x17 or sp, csdb, bti.
# Not PACM (#39), after which the next paciasp signs with the pc.
_MOVABLE_HINTS = frozenset((0, 1, 2, 3, 4, 5, 7, 8, 10, 12, 14, 20, *range(24, 32), 32, 34, 36, 38))

_COPIED_BRANCHES = (
    (0xD61F0000, 0xFFFFFC1F),  # br
    (0xD65F0000, 0xFFFFFC1F),  # ret
    (0xD65F0BFF, 0xFFFFFBFF),  # retaa, retab
    (0xD503305F, 0xFFFFF0FF),  # clrex
    (0xD503309F, 0xFFFFF09F),  # dsb, dmb, isb, sb
    (0xD5300000, 0xFFF00000),  # mrs
    (0xD5100000, 0xFFF00000),  # msr
)

# Literal loads: mask 0xFF000000 → how it is loaded from [xN], bytes
_LITERAL_LOADS = {
    0x18: (0xB9400000, 4),  # ldr w
    0x58: (0xF9400000, 8),  # ldr x
    0x98: (0xB9800000, 4),  # ldrsw
    0x1C: (0xBD400000, 4),  # ldr s
    0x5C: (0xFD400000, 8),  # ldr d
    0x9C: (0x3DC00000, 16),  # ldr q
    0xD8: (0xF9800000, 1),  # prfm
}


def relocate_arm64(
    instructions: Sequence[Instruction], address: int, surroundings: Surroundings
) -> Relocated:
    """Moves consecutive instructions to `address`, a multiple of 4. Raises CannotRelocate."""
    check_flow(instructions)
    code = _Code(address, _scratch(instructions), surroundings)
    code.words.append(BTI_C)  # called through a pointer
    starts: list[int] = []
    for instruction in instructions:
        starts.append(4 * len(code.words) if starts else 0)
        if reference := reference_arm64(instruction):
            check_reference(instruction, reference, instructions)
        _move(code, instruction)
    if instructions[-1].flow not in (Flow.JUMP, Flow.CALL, Flow.RETURN):
        code.jump(instructions[-1].end)
    moved = code.finish()
    scratch = frozenset(f"x{register}" for register in code.used_scratch)
    return Relocated(address, moved, tuple(starts), scratch)


def absolute_jump(_: int, target: int) -> bytes:
    """A jump of any distance in 16 bytes: ldr x16, #8; br x16; .quad target."""
    words = (0x58000050, 0xD61F0200)
    return b"".join(word.to_bytes(4, "little") for word in words) + target.to_bytes(8, "little")


def direct_jump(at: int, target: int) -> bytes | None:
    """`b target` for the address `at`, None if out of reach."""
    distance = target - at
    if not -B_REACH <= distance < B_REACH or distance % 4:
        return None
    return (0x14000000 | distance >> 2 & 0x3FFFFFF).to_bytes(4, "little")


class _Code:
    """Appended words, with out-of-line jumps and 8-byte literals after them."""

    def __init__(self, address: int, scratch: int | None, surroundings: Surroundings) -> None:
        self.address = address
        self.words: list[int] = []
        self.used_scratch: set[int] = set()
        self.surroundings = surroundings
        self._scratch = scratch
        self._literals: list[tuple[int, int]] = []  # index of the load, value
        self._exits: list[tuple[int, int, int, int]] = []  # index of the branch, its shift and width, target

    def scratch(self) -> int:
        if self._scratch is None:
            raise CannotRelocate("x16 and x17 are both in use")
        self.used_scratch.add(self._scratch)
        return self._scratch

    def load(self, register: int, value: int) -> None:
        self._literals.append((len(self.words), value))
        self.words.append(0x58000000 | register)

    def jump(self, target: int) -> None:
        """BTI does not check the target of a return."""
        direct = direct_jump(self.address + 4 * len(self.words), target)
        if direct is not None:
            self.words.append(int.from_bytes(direct, "little"))
            return
        if self.surroundings.has_guarded_calls and self.surroundings.has_shadow_stack:
            raise CannotRelocate(f"{target:#x} is out of reach under BTI and a shadow stack")
        self.load(self.scratch(), target)
        opcode = 0xD65F0000 if self.surroundings.has_guarded_calls else 0xD61F0000
        self.words.append(opcode | self.scratch() << 5)

    def jump_when(self, word: int, shift: int, width: int, target: int) -> None:
        """A conditional branch, whose displacement in `word` is zero, to an out-of-line jump."""
        self._exits.append((len(self.words), shift, width, target))
        self.words.append(word)

    def finish(self) -> bytes:
        for index, shift, width, target in self._exits:
            distance = len(self.words) - index
            self.words[index] |= (distance & ((1 << width) - 1)) << shift
            self.jump(target)
        if (self.address // 4 + len(self.words)) % 2:
            self.words.append(NOP)
        for index, value in self._literals:
            self.words[index] |= (len(self.words) - index) << 5
            self.words += [value & 0xFFFFFFFF, value >> 32]
        return b"".join(word.to_bytes(4, "little") for word in self.words)


def _move(code: _Code, instruction: Instruction) -> None:
    word = int.from_bytes(instruction.code, "little")
    for value, mask, move in _FORMS:
        if word & mask == value:
            move(code, instruction, word)
            return
    if reason := _refusal(word):
        raise CannotRelocate(f"`{instruction}`: {reason}")
    code.words.append(word)


def _refusal(word: int) -> str:
    """Why a word that is not a known pc-relative form may not be copied, "" if it may."""
    if word >> 26 & 0b111 == 0b101:
        is_hint = word & 0xFFFFF01F == NOP & 0xFFFFF01F
        if is_hint and word >> 5 & 0x7F in _MOVABLE_HINTS:
            return ""
        is_known = any(word & mask == value for value, mask in _COPIED_BRANCHES)
        return "" if is_known else "a branch or system instruction that is not known to move"
    if word & 0x3B000000 == 0x18000000:
        return "a literal load that is not known"
    if word & 0x3F800000 == 0x08000000:
        return "a load or store with a monitor"
    if word & 0x1F800000 == 0x13800000 and word & 0x60000000:
        return "it may authenticate with the pc"
    if word & 0xFFFF0000 == 0xDAC10000 and word >> 10 & 0x3F > 0b010001:
        return "it may sign with the pc"
    if word & 0x3B200C00 == 0x38200000 and word >> 12 & 0xF in (0b1001, 0b1010, 0b1011, 0b1101):
        return "it moves 64 bytes at once"
    if word >> 25 & 0b1111 in (0b0000, 0b0001, 0b0011):
        return "it is not allocated, or of SME"
    return ""


def reference_arm64(instruction: Instruction) -> Reference | None:
    """The memory that an adr or a literal load refers to. (An adrp refers to a page.)"""
    word = int.from_bytes(instruction.code, "little")
    if word & 0x9F000000 == 0x10000000:
        return Reference(instruction.address + (signed(word >> 5, 19) << 2 | word >> 29 & 3), 0)
    if word >> 24 in _LITERAL_LOADS:
        return Reference(instruction.address + 4 * signed(word >> 5, 19), _LITERAL_LOADS[word >> 24][1])
    return None


def _move_adr(code: _Code, instruction: Instruction, word: int) -> None:
    reference = reference_arm64(instruction)
    assert reference is not None
    _load_value(code, word & 31, reference.address)


def _move_adrp(code: _Code, instruction: Instruction, word: int) -> None:
    pages = signed(word >> 5 & 0x7FFFF, 19) << 2 | word >> 29 & 3
    _load_value(code, word & 31, (instruction.address & ~0xFFF) + (pages << 12))


def _load_value(code: _Code, register: int, value: int) -> None:
    if register == 31:
        code.words.append(NOP)  # to xzr
    else:
        code.load(register, value & (1 << 64) - 1)


def _move_literal_load(code: _Code, instruction: Instruction, word: int) -> None:
    reference = reference_arm64(instruction)
    assert reference is not None
    register = word & 31
    is_general = word >> 26 & 1 == 0 and word >> 24 != 0xD8
    through = register if is_general and register != 31 else code.scratch()
    code.load(through, reference.address)
    code.words.append(_LITERAL_LOADS[word >> 24][0] | through << 5 | register)


def _move_call(code: _Code, instruction: Instruction, word: int) -> None:
    """The call returns to the original code, where the unwinder knows the frame."""
    target = _target(instruction, word, 0, 26)
    _refuse_call(code, instruction)
    code.load(_LINK, instruction.end)
    code.jump(target)


def _move_call_register(code: _Code, instruction: Instruction, word: int) -> None:
    _refuse_call(code, instruction)
    scratch = code.scratch()  # BTI: a call's landing pad takes `br` from x16 and x17 only
    code.words.append(0xAA0003E0 | (word >> 5 & 31) << 16 | scratch)
    code.load(_LINK, instruction.end)
    code.words.append(0xD61F0000 | scratch << 5)


def _refuse_call(code: _Code, instruction: Instruction) -> None:
    if code.surroundings.has_shadow_stack:
        raise CannotRelocate(f"`{instruction}`: calls cannot be moved under a shadow stack")


def _move_conditional(code: _Code, instruction: Instruction, word: int) -> None:
    width = 14 if word & 0x7E000000 == 0x36000000 else 19
    target = _target(instruction, word, 5, width)
    code.jump_when(word & ~(((1 << width) - 1) << 5), 5, width, target)


def _target(instruction: Instruction, word: int, shift: int, width: int) -> int:
    target = instruction.address + 4 * signed(word >> shift, width)
    if instruction.target != target & (1 << 64) - 1:
        raise CannotRelocate(f"`{instruction}`: the disassembler sees another target than {target:#x}")
    return target


_Move = Callable[[_Code, Instruction, int], None]
_FORMS: tuple[tuple[int, int, _Move], ...] = (
    (0x10000000, 0x9F000000, _move_adr),
    (0x90000000, 0x9F000000, _move_adrp),
    (0x14000000, 0xFC000000, lambda code, instruction, word: code.jump(_target(instruction, word, 0, 26))),
    (0x94000000, 0xFC000000, _move_call),
    (0x54000000, 0xFF000010, _move_conditional),  # b.cond
    (0x34000000, 0x7E000000, _move_conditional),  # cbz, cbnz
    (0x36000000, 0x7E000000, _move_conditional),  # tbz, tbnz
    (0xD63F0000, 0xFFFFFC1F, _move_call_register),
    *((top << 24, 0xFF000000, _move_literal_load) for top in _LITERAL_LOADS),
)


def _scratch(instructions: Sequence[Instruction]) -> int | None:
    """x17 or x16, the one that no instruction uses."""
    named = {
        register
        for instruction in instructions
        for register in _registers(int.from_bytes(instruction.code, "little"))
    }
    return next((register for register in _VENEER_REGISTERS if register not in named), None)


def _registers(word: int) -> set[int]:
    """A superset of the general registers that an instruction uses: every field that could name one (Arm ARM C4.1)."""
    fields = {word & 31, word >> 5 & 31}
    group = word >> 26 & 0b111
    if group == 0b101:
        return _registers_of_branch(word)
    if group == 0b100 and word & 0x1F800000 != 0x13800000:  # immediates, but for extr
        return fields if word & 0x1F000000 != 0x10000000 else {word & 31}
    if word & 0x3B000000 == 0x18000000:
        return {word & 31}
    fields |= {word >> 10 & 31, word >> 16 & 31}
    is_load_or_store = word >> 25 & 0b0101 == 0b0100
    return fields | {17} if is_load_or_store and 16 in fields else fields  # a pair is named by its first


def _registers_of_branch(word: int) -> set[int]:
    if word & 0x7C000000 == 0x14000000:  # b, bl
        return set()
    if word & 0xFFFFF01F == NOP & 0xFFFFF01F:
        return {16, 17} if word >> 5 & 0x7F in (8, 10, 12, 14) else set()  # pacia1716 and its like
    return {word & 31, word >> 5 & 31} if word >> 25 == 0b1101011 else {word & 31}
