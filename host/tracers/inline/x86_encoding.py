"""Length of an x86-64 instruction and the offset of its displacement, from its bytes alone.

It complements the disassembler: moved instructions must have the same length by both. It knows only instructions with
the same effect at any address after adjusting a rip-relative displacement (Intel SDM, volume 2, chapter 2 and appendix A).
EVEX, x87 and instructions that produce an address, trap or access hardware are unknown.
"""

from dataclasses import dataclass

_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\xf0\xf2\xf3")  # not 67: addresses of 32 bits
_PREFIXES_MAX = 4


def _bytes(*ranges: tuple[int, int] | int) -> frozenset[int]:
    spans = [(one, one) if isinstance(one, int) else one for one in ranges]
    return frozenset(byte for first, last in spans for byte in range(first, last + 1))


_ARITHMETIC = [base + 8 * i for i in range(8) for base in range(4)]  # add … cmp
_ONE_MODRM = _bytes(*_ARITHMETIC, 0x63, 0x69, 0x6B, (0x80, 0x81), (0x83, 0x8B), 0x8D, 0x8F, (0xC0, 0xC1),
                    (0xC6, 0xC7), (0xD0, 0xD3), (0xF6, 0xF7), (0xFE, 0xFF))  # fmt: skip
_ONE_PLAIN = _bytes((0x50, 0x5F), (0x90, 0x99), (0x9C, 0x9F), (0xA4, 0xA7), (0xAA, 0xAF), 0xC3, 0xC9,
                    0xF5, (0xF8, 0xF9), (0xFC, 0xFD))  # fmt: skip
_ONE_IMM8 = _bytes(*range(0x04, 0x40, 8), 0x6A, 0x6B, (0x70, 0x7F), 0x80, 0x83, 0xA8, (0xB0, 0xB7), 0xC0, 0xC1,
                   0xC6, (0xE0, 0xE3), 0xEB)  # fmt: skip
_ONE_IMM32 = _bytes(*range(0x05, 0x40, 8), 0x68, 0x69, 0x81, 0xA9, (0xB8, 0xBF), 0xC7, 0xE8, 0xE9)  # or 16
_TWO_MODRM = _bytes((0x10, 0x1F), (0x28, 0x2F), (0x40, 0x76), (0x7C, 0x7F), (0x90, 0x9F), (0xA3, 0xA5), (0xAB, 0xAF),
                    (0xB0, 0xB1), 0xB3, (0xB6, 0xB8), (0xBA, 0xBF), (0xC0, 0xC7), (0xD0, 0xFE))  # fmt: skip
_TWO_IMM8 = _bytes((0x70, 0x73), 0xA4, 0xAC, 0xBA, 0xC2, (0xC4, 0xC6))
_TWO_PLAIN = _bytes(0x77, (0xC8, 0xCF))  # emms, vzeroupper; bswap
_VEX_MAPS = {1: b"\x0f", 2: b"\x0f\x38", 3: b"\x0f\x3a"}


@dataclass(frozen=True, slots=True)
class Encoding:
    """opcode: with its escape bytes. modrm: None if there is none.

    displacement: offset of its 4 bytes in a rip-relative instruction, else None.
    immediate: number of bytes after everything else.
    """

    size: int
    prefixes: bytes
    rex: int
    opcode: bytes
    modrm: int | None
    displacement: int | None
    immediate: int
    is_vex: bool

    @property
    def reg(self) -> int:
        """Field of ModRM that extends the opcode."""
        return self.modrm >> 3 & 7 if self.modrm is not None else 0


def parse(code: bytes) -> Encoding | None:
    """The instruction at the start of `code`; None if unknown."""
    try:
        return _parse(code)
    except IndexError:
        return None


def _parse(code: bytes) -> Encoding | None:
    at = 0
    while code[at] in _PREFIXES:
        at += 1
    prefixes, rex = code[:at], 0
    if len(set(prefixes)) != len(prefixes) or at > _PREFIXES_MAX:
        return None
    if code[at] in (0xC4, 0xC5):
        return _parse_vex(code, at, prefixes)
    if code[at] & 0xF0 == 0x40:
        rex, at = code[at], at + 1
    opcode = code[at : at + 1]
    if opcode == b"\x0f":
        opcode = code[at : at + (3 if code[at + 1] in (0x38, 0x3A) else 2)]
    return _operands(code, at + len(opcode), prefixes, rex, opcode, is_vex=False)


def _parse_vex(code: bytes, at: int, prefixes: bytes) -> Encoding | None:
    is_long = code[at] == 0xC4
    map_ = code[at + 1] & 0x1F if is_long else 1
    rex = 0x48 if is_long and code[at + 2] & 0x80 else 0
    at += 3 if is_long else 2
    if map_ not in _VEX_MAPS or not set(prefixes) <= _bytes(0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65):
        return None
    return _operands(code, at + 1, prefixes, rex, _VEX_MAPS[map_] + code[at : at + 1], is_vex=True)


def _operands(
    code: bytes, at: int, prefixes: bytes, rex: int, opcode: bytes, *, is_vex: bool
) -> Encoding | None:
    has_modrm, immediate = _shape(opcode, prefixes, rex)
    if immediate is None:
        return None
    modrm, displacement = None, None
    if has_modrm:
        modrm = code[at]
        if (
            opcode in (b"\xf6", b"\xf7") and modrm & 0x30 == 0
        ):  # test has one, the others of the group have not
            immediate = 1 if opcode == b"\xf6" else 2 if _is_16_bit(prefixes, rex) else 4
        size, is_relative = _address_size(code, at)
        displacement = at + 1 if is_relative else None
        at += size
    at += immediate
    if at > len(code) or at > 15 or not _is_movable(opcode, modrm, prefixes, is_vex):
        return None
    return Encoding(at, prefixes, rex, opcode, modrm, displacement, immediate, is_vex)


def _shape(opcode: bytes, prefixes: bytes, rex: int) -> tuple[bool, int | None]:
    """Whether there is a ModRM byte, and the bytes of immediate; None for an unknown opcode."""
    last = opcode[-1]
    if len(opcode) == 3:
        return True, int(opcode[1] == 0x3A)
    if len(opcode) == 2:
        if 0x80 <= last <= 0x8F:
            return False, 4
        if last not in _TWO_MODRM | _TWO_PLAIN:
            return False, None
        return last in _TWO_MODRM, int(last in _TWO_IMM8)
    if last in _ONE_IMM32:
        wide = 8 if 0xB8 <= last <= 0xBF and rex & 8 else 4
        return last in _ONE_MODRM, 2 if _is_16_bit(prefixes, rex) else wide
    if last not in _ONE_MODRM | _ONE_PLAIN | _ONE_IMM8:
        return False, None
    return last in _ONE_MODRM, int(last in _ONE_IMM8)


def _is_16_bit(prefixes: bytes, rex: int) -> bool:
    return 0x66 in prefixes and not rex & 8


def _address_size(code: bytes, at: int) -> tuple[int, bool]:
    """Bytes of ModRM, SIB and displacement from code[at] on, and whether the address is relative to rip."""
    mode, rm = code[at] >> 6, code[at] & 7
    if mode == 3:
        return 1, False
    size = 1
    if rm == 4:
        size = 2
        if mode == 0 and code[at + 1] & 7 == 5:
            return 6, False
    if mode == 0:
        return (5, True) if rm == 5 else (size, False)
    return size + (1 if mode == 1 else 4), False


def _is_movable(opcode: bytes, modrm: int | None, prefixes: bytes, is_vex: bool) -> bool:
    """Whether the instruction of an opcode group has the same effect elsewhere."""
    reg = 0 if modrm is None else modrm >> 3 & 7
    in_register = modrm is not None and modrm >> 6 == 3
    is_branch = opcode[0] in (0xE8, 0xE9, 0xEB) or 0x70 <= opcode[0] <= 0x7F or 0xE0 <= opcode[0] <= 0xE3
    is_branch |= len(opcode) == 2 and 0x80 <= opcode[1] <= 0x8F
    if is_branch:
        return not prefixes and not is_vex
    if opcode == b"\xff":
        return reg in (0, 1, 4, 6)  # inc, dec, jmp, push
    if opcode in (b"\xfe", b"\x8f", b"\xc6", b"\xc7"):
        return reg <= (1 if opcode == b"\xfe" else 0)  # xbegin, xabort, XOP
    if opcode == b"\x0f\xae":
        return not is_vex and ((in_register and reg >= 5) or (not in_register and reg in (2, 3)))
    if opcode == b"\x0f\xc7":
        return reg == 1 and not in_register  # cmpxchg8b, cmpxchg16b
    return opcode != b"\x0f\x1a" and opcode != b"\x0f\x1b" and opcode[:1] != b"\x8e"
