"""The call frame instructions of one FDE, run once, give its rows (DWARF 5 §6.4.2, §6.4.3)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.cfi.section import CfiSection, Cie, Fde
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.reader import (
    U8,
    U16,
    U32,
    U64,
    PointerBases,
    read_number,
    read_pointer,
    read_sleb,
    read_uleb,
)
from memleak_android.unwind.trace import Method

_ROWS_MAX = 65536  # of one FDE; the largest seen in libLLVM has some hundreds
_CHANGES_MAX = 65536  # of rules, in one FDE
_PROGRAM_MAX = 1 << 18  # bytes of one FDE's instructions, nops included
_REMEMBERED_MAX = 1024
_REGISTER_MAX = 1024
_RA_SIGN_STATE = 34  # AADWARF64 §4.1: a pseudo-register of arm64, 1 while the return address is signed
_SIGNED = RegisterRule(_RA_SIGN_STATE, RuleKind.VAL_EXPRESSION, 0, b"\x31")  # DW_OP_lit1
_UNSIGNED = RegisterRule(_RA_SIGN_STATE, RuleKind.VAL_EXPRESSION, 0, b"\x30")

_Cfa = tuple[int, int, bytes]  # register, offset, expression
_Rules = dict[int, RegisterRule]
_Change = tuple[int, int, RegisterRule | None]  # the change before it, a register, its rule from here on
_NO_CHANGE = -1


@dataclass(frozen=True, slots=True)
class DecodedFde:
    """Rows in order, as three columns: first vaddr, CFA, the last change of a rule.

    Each change names the one before it, so that a row costs what it changed and not what it holds: 200 KB of
    instructions about 1024 registers would make rows of 2 GB.
    """

    starts: list[int]
    cfas: list[_Cfa]
    last_changes: list[int]
    changes: list[_Change]

    def row(self, i: int, cie: Cie, method: Method) -> UnwindRow:
        """The i-th row as a value that compares equal for equal rules."""
        rules = _rules_after(self.changes, self.last_changes[i])
        sign = rules.get(_RA_SIGN_STATE)
        ordered = tuple(
            [rules[r] for r in sorted(rules) if r != _RA_SIGN_STATE or sign not in (_SIGNED, _UNSIGNED)]
        )
        return UnwindRow(*self.cfas[i], ordered, cie.return_register, cie.is_signal, method, sign == _SIGNED)


def _rules_after(changes: list[_Change], last: int) -> _Rules:
    rules: dict[int, RegisterRule | None] = {}
    while last != _NO_CHANGE:
        last, register, rule = changes[last]
        rules.setdefault(register, rule)
    return {register: rule for register, rule in rules.items() if rule is not None}


def decode(section: CfiSection, fde: Fde) -> DecodedFde:
    """Runs the instructions of an FDE's CIE and its own. Raises BadCfiError."""
    machine = _Machine(section.data, fde.cie, fde.start, section, fde.start)
    try:
        machine.run(*fde.cie.program)
        machine.initial = _rules_after(machine.changes, machine.last_change)
        if machine.location != fde.start:
            raise BadCfiError("an advance among a CIE's initial instructions", fde.cie.program[0])
        machine.run(*fde.program)
    except IndexError:
        raise BadCfiError("it ends in the middle of an instruction", fde.program[0]) from None
    machine.close_row()
    return DecodedFde(machine.starts, machine.cfas, machine.rows, machine.changes)


@dataclass(slots=True)
class _Machine:
    data: bytes
    cie: Cie
    location: int
    section: CfiSection
    function: int  # where it starts
    cfa: _Cfa | None = None
    last_change: int = _NO_CHANGE
    is_signed: bool = False  # the rule of RA_SIGN_STATE is _SIGNED
    initial: _Rules = field(default_factory=dict)
    remembered: list[tuple[_Cfa | None, int, bool]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    cfas: list[_Cfa] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    changes: list[_Change] = field(default_factory=list)

    def run(self, at: int, end: int) -> None:
        """The frequent instructions are spelled out here, the others are in _DEFINED."""
        data, code_align, data_align = self.data, self.cie.code_align, self.cie.data_align
        if end - at > _PROGRAM_MAX:
            raise BadCfiError("too many instructions", at)
        while at < end:
            opcode = data[at]
            at += 1
            if opcode >= 0x40:
                low = opcode & 0x3F
                if opcode < 0x80:  # DW_CFA_advance_loc
                    self.advance(low * code_align, at)
                elif opcode < 0xC0:  # DW_CFA_offset
                    value, at = read_uleb(data, at)
                    self.set_rule(RegisterRule(low, RuleKind.OFFSET, value * data_align))
                else:  # DW_CFA_restore
                    self.restore(low)
            elif opcode == 0x0E and data[at] < 0x80 and self.cfa and not self.cfa[2]:  # DW_CFA_def_cfa_offset
                self.cfa = (self.cfa[0], data[at], b"")
                at += 1
            elif opcode == 0x02:  # DW_CFA_advance_loc1
                self.advance(data[at] * code_align, at)
                at += 1
            elif opcode:
                operation = _OPERATIONS[opcode]
                if operation is None:
                    raise BadCfiError(f"unknown instruction {opcode:#04x}", at - 1)
                at = operation(self, at)
        if at > end:
            raise BadCfiError("an instruction that reaches past its entry", at)

    def advance(self, distance: int, at: int) -> None:
        if distance <= 0:
            if distance:
                raise BadCfiError("rows that go backwards", at)
            return
        if len(self.starts) >= _ROWS_MAX:
            raise BadCfiError("too many rows", at)
        self.close_row()
        self.location += distance

    def close_row(self) -> None:
        if self.cfa is None:
            raise BadCfiError("a row without a CFA", self.cie.program[0])
        self.starts.append(self.location)
        self.cfas.append(self.cfa)
        self.rows.append(self.last_change)

    def set_rule(self, rule: RegisterRule) -> None:
        self.change(rule.register, rule)

    def restore(self, register: int) -> None:
        self.change(register, self.initial.get(register))

    def change(self, register: int, rule: RegisterRule | None) -> None:
        if len(self.changes) >= _CHANGES_MAX:
            raise BadCfiError("too many rules", self.cie.program[0])
        self.changes.append((self.last_change, register, rule))
        self.last_change = len(self.changes) - 1
        if register == _RA_SIGN_STATE:
            self.is_signed = rule == _SIGNED

    def register(self, at: int) -> tuple[int, int]:
        number, after = read_uleb(self.data, at)
        if number >= _REGISTER_MAX:
            raise BadCfiError(f"an impossible register number {number}", at)
        return number, after

    def block(self, at: int) -> tuple[bytes, int]:
        size, at = read_uleb(self.data, at)
        if size > len(self.data) - at:
            raise BadCfiError("an expression that reaches past the section", at)
        return bytes(self.data[at : at + size]), at + size


_Operation = Callable[[_Machine, int], int]


def _advance(form_index: int) -> _Operation:
    form = (U8, U16, U32, U64)[form_index]

    def operation(m: _Machine, at: int) -> int:
        delta, after = read_number(m.data, at, form)
        m.advance(delta * m.cie.code_align, at)
        return after

    return operation


def _set_loc(m: _Machine, at: int) -> int:
    bases = PointerBases(m.section.vaddr, m.cie.word_bytes, m.section.text, m.section.base, m.function)
    location, after = read_pointer(m.data, at, m.cie.pointer_encoding & 0x7F, bases)
    m.advance(location - m.location, at)
    return after


def _rule(kind: RuleKind, *, operand: str = "") -> _Operation:
    """An instruction that gives one register a rule.

    operand: '' none, u factored offset, n the same negated, s signed, r register.
    """

    def operation(m: _Machine, at: int) -> int:
        register, at = m.register(at)
        value = 0
        if operand == "r":
            value, at = m.register(at)
        elif operand:
            value, at = read_sleb(m.data, at) if operand == "s" else read_uleb(m.data, at)
            value *= -m.cie.data_align if operand == "n" else m.cie.data_align
        m.set_rule(RegisterRule(register, kind, value))
        return at

    return operation


def _expression_rule(kind: RuleKind) -> _Operation:
    def operation(m: _Machine, at: int) -> int:
        register, at = m.register(at)
        code, at = m.block(at)
        m.set_rule(RegisterRule(register, kind, 0, code))
        return at

    return operation


def _restore_extended(m: _Machine, at: int) -> int:
    register, at = m.register(at)
    m.restore(register)
    return at


def _negate_ra_state(m: _Machine, at: int) -> int:
    m.change(_RA_SIGN_STATE, None if m.is_signed else _SIGNED)
    return at


def _remember_state(m: _Machine, at: int) -> int:
    if len(m.remembered) >= _REMEMBERED_MAX:
        raise BadCfiError("too many remembered states", at)
    m.remembered.append((m.cfa, m.last_change, m.is_signed))
    return at


def _restore_state(m: _Machine, at: int) -> int:
    if not m.remembered:
        raise BadCfiError("restore_state without remember_state", at)
    m.cfa, m.last_change, m.is_signed = m.remembered.pop()  # the CFA too, as GCC and LLVM mean it
    return at


def _def_cfa(*, register: bool = False, operand: str = "") -> _Operation:
    """An instruction that gives the CFA another register, another offset (u, or s: signed and factored), or both."""

    def operation(m: _Machine, begin: int) -> int:
        number, at = m.register(begin) if register else (None, begin)
        offset = None
        if operand == "u":
            offset, at = read_uleb(m.data, at)
            offset = _signed(offset, m.cie)
        elif operand == "s":
            offset, at = read_sleb(m.data, at)
            offset *= m.cie.data_align
        if number is None or offset is None:
            if m.cfa is None or m.cfa[2]:
                raise BadCfiError("a change of a CFA that is not register and offset", begin)
            number, offset = m.cfa[0] if number is None else number, m.cfa[1] if offset is None else offset
        m.cfa = (number, offset, b"")
        return at

    return operation


def _signed(offset: int, cie: Cie) -> int:
    """LLVM writes negative offsets (in ART's arm64 assembly: 2**64 - 224) into instructions that have no sign."""
    bits = 8 * cie.word_bytes
    return offset - (1 << bits) if offset >> (bits - 1) == 1 else offset


def _def_cfa_expression(m: _Machine, at: int) -> int:
    code, at = m.block(at)
    if not code:
        raise BadCfiError("an empty CFA expression", at)
    m.cfa = (-1, 0, code)
    return at


def _args_size(m: _Machine, at: int) -> int:
    return read_uleb(m.data, at)[1]  # matters to exception handlers only


_DEFINED: dict[int, _Operation] = {
    0x00: lambda _, at: at,  # DW_CFA_nop
    0x01: _set_loc,
    0x02: _advance(0),
    0x03: _advance(1),
    0x04: _advance(2),
    0x05: _rule(RuleKind.OFFSET, operand="u"),  # DW_CFA_offset_extended: factored
    0x06: _restore_extended,
    0x07: _rule(RuleKind.UNDEFINED),
    0x08: _rule(RuleKind.SAME_VALUE),
    0x09: _rule(RuleKind.REGISTER, operand="r"),
    0x0A: _remember_state,
    0x0B: _restore_state,
    0x0C: _def_cfa(register=True, operand="u"),
    0x0D: _def_cfa(register=True),
    0x0E: _def_cfa(operand="u"),
    0x0F: _def_cfa_expression,
    0x10: _expression_rule(RuleKind.EXPRESSION),
    0x11: _rule(RuleKind.OFFSET, operand="s"),  # DW_CFA_offset_extended_sf
    0x12: _def_cfa(register=True, operand="s"),
    0x13: _def_cfa(operand="s"),
    0x14: _rule(RuleKind.VAL_OFFSET, operand="u"),
    0x15: _rule(RuleKind.VAL_OFFSET, operand="s"),
    0x16: _expression_rule(RuleKind.VAL_EXPRESSION),
    0x1D: _advance(3),  # DW_CFA_MIPS_advance_loc8
    0x2C: _negate_ra_state,  # DW_CFA_AARCH64_negate_ra_state_with_pc: signed with the pc, too
    0x2D: _negate_ra_state,  # DW_CFA_AARCH64_negate_ra_state; elsewhere DW_CFA_GNU_window_save (SPARC only)
    0x2E: _args_size,  # DW_CFA_GNU_args_size
    0x2F: _rule(RuleKind.OFFSET, operand="n"),  # DW_CFA_GNU_negative_offset_extended
}
_OPERATIONS: list[_Operation | None] = [_DEFINED.get(opcode) for opcode in range(0x40)]
