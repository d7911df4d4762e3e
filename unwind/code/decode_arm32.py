"""Effects of single A32 and T32 instructions on the stack and the control flow (Arm ARM DDI 0406, A5, A6, A8).

Only that: pushes, pops, loads and stores of whole words, moves of the stack pointer and of copies of it, branches.
"""

from enum import Enum
from typing import NamedTuple

SP, LR, PC = 13, 14, 15
ALWAYS = 14
_IP = 12  # what linkers' veneers and PLT entries jump by (AAPCS32 §6.1.1)


class Flow(Enum):
    """Control flow after an instruction, of arm64 too."""

    NEXT = 0
    CALL = 1
    RETURN = 2  # or a jump on behalf of the linker: the return address is where it was at entry
    JUMP = 3
    CONDITIONAL = 4
    DEAD_END = 5  # udf, erased code, a jump to somewhere
    TABLE = 6  # through a table that begins at the target
    BY_REGISTER = 7  # a tail call, or a computed goto of the same function


class Move(NamedTuple):
    """rd = rn + distance; rn < 0: something else."""

    rd: int
    rn: int
    distance: int = 0


class Transfer(NamedTuple):
    """Registers, ascending in memory, from rn + offset on; then rn += step."""

    is_load: bool
    registers: tuple[int, ...]
    rn: int
    offset: int
    step: int = 0


class Operation(NamedTuple):
    """size: bytes. target: of a jump, or where the table begins. entry: bytes of one of its entries.

    covers: how many instructions behind this one it makes conditional (IT). condition: its own (A8.3).
    """

    size: int
    flow: Flow = Flow.NEXT
    target: int = 0
    effect: Move | Transfer | None = None
    covers: int = 0
    condition: int = ALWAYS
    entry: int = 0


def signed(value: int, bits: int) -> int:
    """A field of so many bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _listed(mask: int) -> tuple[int, ...]:
    return tuple(n for n in range(16) if mask >> n & 1)


def _block(size: int, word: int) -> Operation:
    """ldm, stm of A32; T32 has the same fields at the same bits."""
    registers = _listed(word & 0xFFFF)
    before, up, write_back, is_load = (bool(word >> bit & 1) for bit in (24, 23, 21, 20))
    span = 4 * len(registers)
    offset = (4 if before else 0) if up else (-span if before else 4 - span)
    step = (span if up else -span) if write_back else 0
    return _transfer(size, is_load, registers, word >> 16 & 15, offset, step)


def _transfer(
    size: int, is_load: bool, registers: tuple[int, ...], rn: int, offset: int, step: int = 0
) -> Operation:
    if is_load and PC in registers:
        if rn == SP:
            returned = tuple(LR if n == PC else n for n in registers if n != LR)
            return Operation(size, Flow.RETURN, 0, Transfer(True, returned, rn, offset, step))
        return Operation(size, Flow.RETURN if rn in (_IP, PC) else Flow.DEAD_END)  # a veneer, a PLT entry
    return Operation(size, effect=Transfer(is_load, registers, rn, offset, step))


def _indexed(
    size: int, registers: tuple[int, ...], rn: int, distance: int, bits: tuple[int, int, int]
) -> Operation:
    """bits: P (before), W (write back), L (load) of single and double transfers."""
    before, write_back, is_load = bits
    step = distance if write_back or not before else 0
    return _transfer(size, bool(is_load), registers, rn, distance if before else 0, step)


def _by_register(rm: int) -> Flow:
    return Flow.RETURN if rm in (_IP, LR, PC) else Flow.BY_REGISTER


# ---- A32 ----------------------------------------------------------------------------------------------


def decode_arm(code: bytes, at: int) -> Operation:
    """The instruction in the first 4 bytes of code. at: its vaddr."""
    operation = _decode_arm(code, at)
    return operation._replace(condition=min(code[3] >> 4, ALWAYS)) if len(code) == 4 else operation


def _decode_arm(code: bytes, at: int) -> Operation:
    word = int.from_bytes(code[:4], "little")
    condition, kind = word >> 28, word >> 25 & 7
    if len(code) < 4 or not word or word & 0x0FF0_00F0 == 0x07F0_00F0:  # nothing, erased, udf
        return Operation(4, Flow.DEAD_END)
    if condition == 15:
        return Operation(4, Flow.CALL if kind == 5 else Flow.NEXT)  # blx to a label
    if kind == 5:
        if word >> 24 & 1:
            return Operation(4, Flow.CALL)
        flow = Flow.JUMP if condition == 14 else Flow.CONDITIONAL
        return Operation(4, flow, at + 8 + 4 * signed(word, 24))
    if word & 0x0FFF_FFF0 == 0x012F_FF10:  # bx
        return Operation(4, _by_register(word & 15))
    if word & 0x0FFF_FFF0 == 0x012F_FF30:  # blx
        return Operation(4, Flow.CALL)
    if kind == 4:
        return _block(4, word)
    rn, rd = word >> 16 & 15, word >> 12 & 15
    bits = (word >> 24 & 1, word >> 21 & 1, word >> 20 & 1)
    sign = 1 if word >> 23 & 1 else -1
    if kind == 2 and not word >> 22 & 1:  # ldr, str
        return _indexed(4, (rd,), rn, sign * (word & 0xFFF), bits)
    if kind == 3:  # ldr, str by a register; a switch
        return Operation(4, Flow.TABLE, at + 8, entry=4) if rd == PC else Operation(4)
    if word & 0x0E50_00D0 == 0x0040_00D0:  # ldrd, strd
        offset = sign * (word >> 4 & 0xF0 | word & 15)
        return _indexed(4, (rd, rd + 1), rn, offset, (bits[0], bits[1], 1 - (word >> 5 & 1)))
    if word & 0x0E00_0E00 == 0x0C00_0A00 and rn == SP and bits[1]:  # vpush, vpop
        return Operation(4, effect=Move(SP, SP, sign * 4 * (word & 0xFF)))
    if rd == PC and rn == PC and word & 0x0FE0_0010 == 0x0080_0000:  # add pc, pc, …: a switch over branches
        return Operation(4, Flow.JUMP, at + 8)
    return _arm_data(word, kind, rn, rd)


def _arm_data(word: int, kind: int, rn: int, rd: int) -> Operation:
    opcode = word >> 21 & 15
    if kind > 1 or 8 <= opcode <= 11 or (kind == 0 and word & 0x90 == 0x90):
        return Operation(4)  # compares, multiplications, halfwords
    effect = Move(rd, -1)
    if kind == 1 and opcode in (2, 4):
        turn = word >> 7 & 30
        number = (word & 0xFF) >> turn | (word & 0xFF) << (32 - turn) & 0xFFFFFFFF
        effect = Move(rd, rn, number if opcode == 4 else -number)
    elif kind == 0 and opcode == 13 and not word & 0xFF0:  # mov
        if rd == PC:
            return Operation(4, Flow.RETURN if word & 15 == LR else Flow.DEAD_END)
        effect = Move(rd, word & 15)
    if rd == PC:
        return Operation(4, Flow.DEAD_END)
    return Operation(4, effect=effect)


# ---- T32 ----------------------------------------------------------------------------------------------


def decode_thumb(code: bytes, at: int) -> Operation:
    """The instruction in the first 2 or 4 bytes of code. at: its vaddr."""
    if len(code) < 2:
        return Operation(2, Flow.DEAD_END)
    first = int.from_bytes(code[:2], "little")
    if first >> 11 < 0x1D:
        return _branch16(first, at) or _stack16(first, at)
    if len(code) < 4:
        return Operation(4, Flow.DEAD_END)
    second = int.from_bytes(code[2:4], "little")
    if first >> 11 == 0x1E and second >> 15:
        return _branch32(first, second, at)
    return _switch32(first, second, at) or _memory32(first, second) or _data32(first, second)


def _branch16(half: int, at: int) -> Operation | None:
    if half & 0xFF00 == 0x4700:  # bx, blx; bx pc is how a veneer enters A32, on its way to another function
        return Operation(2, Flow.CALL if half & 0x80 else _by_register(half >> 3 & 15))
    if half & 0xF500 == 0xB100:  # cbz, cbnz
        return Operation(2, Flow.CONDITIONAL, at + 4 + (half >> 3 & 0x40 | half >> 2 & 0x3E))
    if half >> 12 == 13 and half >> 8 & 15 < 15:
        if half >> 8 & 15 == 14:  # udf
            return Operation(2, Flow.DEAD_END)
        return Operation(2, Flow.CONDITIONAL, at + 4 + 2 * signed(half, 8))
    if half >> 11 == 0x1C:
        return Operation(2, Flow.JUMP, at + 4 + 2 * signed(half, 11))
    if half & 0xFF00 == 0xBF00 and half & 15:  # it
        mask = half & 15
        return Operation(2, covers=4 - ((mask & -mask).bit_length() - 1))
    return Operation(2, Flow.DEAD_END) if not half else None  # movs r0, r0: erased


def _stack16(half: int, at: int) -> Operation:
    if half & 0xFE00 == 0xB400:  # push
        registers = _listed(half & 0xFF | (half & 0x100) << 6)
        span = -4 * len(registers)
        return _transfer(2, False, registers, SP, span, span)
    if half & 0xFE00 == 0xBC00:  # pop
        registers = _listed(half & 0xFF | (half & 0x100) << 7)
        return _transfer(2, True, registers, SP, 0, 4 * len(registers))
    if half & 0xFF00 == 0xB000:  # add, sub sp
        distance = (half & 0x7F) * 4
        return Operation(2, effect=Move(SP, SP, -distance if half & 0x80 else distance))
    if half & 0xF000 == 0x9000:  # ldr, str by sp
        return _transfer(2, bool(half & 0x800), (half >> 8 & 7,), SP, (half & 0xFF) * 4)
    if half >> 11 == 0x15:  # add rd, sp
        return Operation(2, effect=Move(half >> 8 & 7, SP, (half & 0xFF) * 4))
    if half & 0xFF00 in (0x4400, 0x4600):  # add, mov of any registers
        rd, rm = half & 7 | half >> 4 & 8, half >> 3 & 15
        if rd == PC:  # also a switch over code of equal lengths, which follows
            return Operation(2, Flow.RETURN) if half == 0x46F7 else Operation(2, Flow.JUMP, (at + 5) & ~3)
        return Operation(2, effect=Move(rd, rm if half & 0x200 else -1))
    if half >> 12 == 3:  # adds, subs of 8 bits
        rd, number = half >> 8 & 7, half & 0xFF
        return Operation(2, effect=Move(rd, rd, -number if half & 0x800 else number))
    if half & 0xFC00 == 0x1C00:  # adds, subs of 3 bits
        number = half >> 6 & 7
        return Operation(2, effect=Move(half & 7, half >> 3 & 7, -number if half & 0x200 else number))
    if half >> 11 == 4:  # movs
        return Operation(2, effect=Move(half >> 8 & 7, -1))
    return Operation(2)


def _branch32(first: int, second: int, at: int) -> Operation:
    kind = second >> 12 & 5
    if kind >= 4:  # bl, blx
        return Operation(4, Flow.CALL)
    sign, j1, j2 = first >> 10 & 1, second >> 13 & 1, second >> 11 & 1
    if kind == 1:  # b.w
        high = sign << 2 | (1 - (j1 ^ sign)) << 1 | (1 - (j2 ^ sign))
        return Operation(
            4, Flow.JUMP, at + 4 + signed(high << 22 | (first & 0x3FF) << 12 | (second & 0x7FF) << 1, 25)
        )
    if first >> 7 & 7 == 7:  # udf.w, barriers, system registers
        return Operation(4, Flow.DEAD_END if first & 0xFFF0 == 0xF7F0 else Flow.NEXT)
    number = sign << 20 | j2 << 19 | j1 << 18 | (first & 0x3F) << 12 | (second & 0x7FF) << 1
    return Operation(4, Flow.CONDITIONAL, at + 4 + signed(number, 21))


def _switch32(first: int, second: int, at: int) -> Operation | None:
    if first == 0xE8DF and second & 0xFFE0 == 0xF000:  # tbb, tbh
        return Operation(4, Flow.TABLE, at + 4, entry=2 if second & 0x10 else 1)
    if first == 0xF85F and second >> 12 == PC:  # ldr.w pc, a literal: a veneer
        return Operation(4, Flow.RETURN)
    return None


def _memory32(first: int, second: int) -> Operation | None:
    rn, rt = first & 15, second >> 12
    before, up, write_back, is_load = (first >> bit & 1 for bit in (8, 7, 5, 4))
    sign = 1 if up else -1
    if first & 0xFE40 == 0xE800:  # ldm, stm
        return _block(4, first << 16 | second)
    if first & 0xFE40 == 0xE840 and (before or write_back):  # ldrd, strd
        pair = (rt, second >> 8 & 15)
        return _indexed(4, pair, rn, sign * 4 * (second & 0xFF), (before, write_back, is_load))
    if first & 0xFFE0 == 0xF8C0:  # ldr, str of 12 bits
        return _transfer(4, bool(is_load), (rt,), rn, second & 0xFFF)
    if first & 0xFF60 == 0xF840:
        if rn == PC or not second & 0x800:  # a literal; by a register
            return Operation(4, Flow.DEAD_END if rt == PC and is_load else Flow.NEXT)
        distance = (second & 0xFF) * (1 if second & 0x200 else -1)
        return _indexed(4, (rt,), rn, distance, (second >> 10 & 1, second >> 8 & 1, is_load))
    if first & 0xFE00 == 0xEC00 and second & 0x0E00 == 0x0A00 and rn == SP and write_back:  # vpush, vpop
        return Operation(4, effect=Move(SP, SP, sign * 4 * (second & 0xFF)))
    return None


def _data32(first: int, second: int) -> Operation:
    rn, rd = first & 15, second >> 8 & 15
    number = (first >> 10 & 1) << 11 | second >> 4 & 0x700 | second & 0xFF
    if first & 0xFA00 == 0xF000:  # a modified immediate
        opcode = first >> 5 & 15
        if rd == PC:  # compares
            return Operation(4)
        if opcode in (8, 13):
            value = _expanded(number)
            return Operation(4, effect=Move(rd, rn, value if opcode == 8 else -value))
        return Operation(4, effect=Move(rd, -1))
    if first & 0xFB5F in (0xF200 | rn, 0xF240 | rn) and first & 0xFB50 == 0xF200:  # addw, subw
        return Operation(4, effect=Move(rd, rn, -number if first & 0xA0 == 0xA0 else number))
    if first & 0xFFEF == 0xEA4F and not second & 0x70F0:  # mov.w
        return Operation(4, effect=Move(rd, second & 15))
    if first & 0xFE00 == 0xEA00 and rd != PC:
        return Operation(4, effect=Move(rd, -1))
    return Operation(4)


def _expanded(number: int) -> int:
    """ThumbExpandImm (A6.3.2)."""
    byte = number & 0xFF
    if number >> 10:
        value, turn = 0x80 | number & 0x7F, number >> 7
        return value >> turn | value << (32 - turn) & 0xFFFFFFFF
    return (byte, byte << 16 | byte, byte << 24 | byte << 8, byte * 0x01010101)[number >> 8]
