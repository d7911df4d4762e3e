"""DWARF expressions as CFI may hold them (DWARF 5 §2.5, §6.4.2): evaluated, or folded to register + offset."""

import operator
from collections.abc import Callable
from typing import NamedTuple, Protocol

from memleak_android.unwind.errors import BadCfiError, ExpressionError
from memleak_android.unwind.reader import S16, S32, S64, U8, U16, U32, U64, read_number, read_sleb, read_uleb

_STEPS_MAX = 4096
_STACK_MAX = 256
_SHOWN_BYTES = 32  # of an expression, in an error


class Machine(Protocol):
    """Registers (by DWARF number) and memory for an expression; both raise UnreadableMemoryError."""

    @property
    def word_bytes(self) -> int: ...

    def register(self, number: int) -> int: ...

    def memory(self, address: int, size: int) -> int: ...


class Linear(NamedTuple):
    """register + offset: all that is known of a value when an expression is folded."""

    register: int
    offset: int


_Value = int | Linear
_CONSTANTS = {0x08: U8, 0x0A: U16, 0x0B: S16, 0x0C: U32, 0x0D: S32, 0x0E: U64, 0x0F: S64}
_CONST1S = 0x09
_COMPARISONS: dict[int, Callable[[int, int], bool]] = {
    0x29: operator.eq, 0x2A: operator.ge, 0x2B: operator.gt, 0x2C: operator.le, 0x2D: operator.lt, 0x2E: operator.ne,
}  # fmt: skip


def evaluate(code: bytes, machine: Machine, initial: int | None = None) -> int:
    """The value left on top. initial: pushed first (the CFA). Raises ExpressionError, UnreadableMemoryError."""
    evaluation = _Evaluation(code, machine, [] if initial is None else [initial])
    value = evaluation.run()
    assert isinstance(value, int)
    return value


def fold(code: bytes, known: dict[int, int], word_bytes: int) -> Linear | None:
    """The expression as register + offset, given the values of the registers in `known`, or None.

    This is how the CFA of PLT entries, which depends on rip's low bits only, becomes a plain rule.
    """
    try:
        value = _Evaluation(code, _Symbolic(known, word_bytes), []).run()
    except (ExpressionError, _NotLinear):
        return None
    return value if isinstance(value, Linear) else None


class _NotLinear(Exception):
    pass


class _Symbolic:
    def __init__(self, known: dict[int, int], word_bytes: int) -> None:
        self.known = known
        self.word_bytes = word_bytes

    def register(self, number: int) -> _Value:
        return self.known[number] if number in self.known else Linear(number, 0)

    def memory(self, address: int, size: int) -> int:
        raise _NotLinear


class _Evaluation:
    def __init__(self, code: bytes, machine: Machine | _Symbolic, stack: list[_Value]) -> None:
        self.code = code
        self.machine = machine
        self.stack = stack
        self.bits = 8 * machine.word_bytes
        self.mask = (1 << self.bits) - 1

    def run(self) -> _Value:
        at = steps = 0
        try:
            while at < len(self.code):
                steps += 1
                if steps > _STEPS_MAX or len(self.stack) > _STACK_MAX:
                    raise ExpressionError("an expression that does not end")
                at = self._step(self.code[at], at + 1)
                if not 0 <= at <= len(self.code):
                    raise ExpressionError("an expression that jumps outside itself")
            return self.stack[-1]
        except (BadCfiError, IndexError, ZeroDivisionError) as error:
            shown = self.code[:_SHOWN_BYTES].hex() + ("…" if len(self.code) > _SHOWN_BYTES else "")
            raise ExpressionError(f"malformed DWARF expression {shown}: {error}") from None

    def _step(self, op: int, at: int) -> int:
        if 0x30 <= op <= 0x4F:  # DW_OP_lit0 … lit31
            self.stack.append(op - 0x30)
        elif 0x50 <= op <= 0x6F:  # DW_OP_reg0 … reg31: as a value, gcc's unwinder allows it
            self.stack.append(self.machine.register(op - 0x50))
        elif 0x70 <= op <= 0x8F:  # DW_OP_breg0 … breg31
            offset, at = read_sleb(self.code, at)
            self.stack.append(self._sum(self.machine.register(op - 0x70), offset))
        elif op in _CONSTANTS:
            value, at = read_number(self.code, at, _CONSTANTS[op])
            self.stack.append(value & self.mask)
        elif op in _COMPARISONS:
            right, left = self._signed(), self._signed()
            self.stack.append(int(_COMPARISONS[op](left, right)))
        elif op in _STACK_OPERATIONS:
            _STACK_OPERATIONS[op](self)
        elif op in _READING_OPERATIONS:
            at = _READING_OPERATIONS[op](self, at)
        else:
            raise ExpressionError(f"DWARF operation {op:#04x} is not allowed in call frame information")
        return at

    def _number(self) -> int:
        value = self.stack.pop()
        if isinstance(value, Linear):
            raise _NotLinear
        return value

    def _signed(self) -> int:
        value = self._number()
        return value - (1 << self.bits) if value >> (self.bits - 1) else value

    def _sum(self, left: _Value, right: _Value) -> _Value:
        if isinstance(left, Linear) and isinstance(right, int):
            return Linear(
                left.register, left.offset + (right - (self.mask + 1) if right > self.mask >> 1 else right)
            )
        if isinstance(right, Linear) and isinstance(left, int):
            return self._sum(right, left)
        if isinstance(left, int) and isinstance(right, int):
            return (left + right) & self.mask
        raise _NotLinear

    def binary(self, function: Callable[[int, int], int]) -> None:
        right, left = self._number(), self._number()
        self.stack.append(function(left, right) & self.mask)

    def plus(self) -> None:
        right, left = self.stack.pop(), self.stack.pop()
        self.stack.append(self._sum(left, right))

    def minus(self) -> None:
        right, left = self._number(), self.stack.pop()
        self.stack.append(self._sum(left, -right))

    def divide(self) -> None:
        right, left = self._signed(), self._signed()
        quotient = abs(left) // abs(right)
        self.stack.append((quotient if (left < 0) == (right < 0) else -quotient) & self.mask)

    def unary(self, function: Callable[[int], int]) -> None:
        self.stack.append(function(self._signed()) & self.mask)

    def shift(self, *, left: bool, signed: bool = False) -> None:
        count = min(self._number(), self.bits)
        value = self._signed() if signed else self._number()
        self.stack.append((value << count if left else value >> count) & self.mask)

    def pick(self, depth: int) -> None:
        if depth >= len(self.stack):
            raise ExpressionError("an expression that picks below its stack")
        self.stack.append(self.stack[-1 - depth])

    def drop(self) -> None:
        self.stack.pop()

    def rotate(self) -> None:
        first, second, third = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.stack += [first, third, second]

    def swap(self) -> None:
        first, second = self.stack.pop(), self.stack.pop()
        self.stack += [first, second]

    def dereference(self, size: int) -> None:
        self.stack.append(self.machine.memory(self._number(), size))

    def plus_constant(self, at: int) -> int:
        value, at = read_uleb(self.code, at)
        self.stack.append(self._sum(self.stack.pop(), value))
        return at

    def push(self, value: int, at: int) -> int:
        self.stack.append(value & self.mask)
        return at

    def branch(self, at: int, *, always: bool) -> int:
        distance, at = read_number(self.code, at, S16)
        return at + distance if always or self._number() else at

    def register_offset(self, at: int) -> int:
        number, at = read_uleb(self.code, at)
        offset, at = read_sleb(self.code, at)
        self.stack.append(self._sum(self.machine.register(number), offset))
        return at

    def dereference_sized(self, at: int) -> int:
        size = self.code[at]
        if size not in (1, 2, 4, 8):
            raise ExpressionError(f"a memory read of {size} bytes")
        self.dereference(size)
        return at + 1

    def pick_indexed(self, at: int) -> int:
        self.pick(self.code[at])
        return at + 1


_STACK_OPERATIONS: dict[int, Callable[[_Evaluation], None]] = {
    0x06: lambda e: e.dereference(e.bits // 8),  # DW_OP_deref
    0x12: lambda e: e.pick(0),  # dup
    0x13: _Evaluation.drop,
    0x14: lambda e: e.pick(1),  # over
    0x16: _Evaluation.swap,
    0x17: _Evaluation.rotate,
    0x19: lambda e: e.unary(abs),
    0x1A: lambda e: e.binary(operator.and_),
    0x1B: _Evaluation.divide,
    0x1C: _Evaluation.minus,
    0x1D: lambda e: e.binary(operator.mod),
    0x1E: lambda e: e.binary(operator.mul),
    0x1F: lambda e: e.unary(operator.neg),
    0x20: lambda e: e.unary(operator.invert),
    0x21: lambda e: e.binary(operator.or_),
    0x22: _Evaluation.plus,
    0x24: lambda e: e.shift(left=True),
    0x25: lambda e: e.shift(left=False),
    0x26: lambda e: e.shift(left=False, signed=True),
    0x27: lambda e: e.binary(operator.xor),
    0x96: lambda e: None,  # nop
}
_READING_OPERATIONS: dict[int, Callable[[_Evaluation, int], int]] = {
    0x03: lambda e, at: e.push(*read_number(e.code, at, U64 if e.bits == 64 else U32)),  # addr
    _CONST1S: lambda e, at: e.push(e.code[at] - 256 if e.code[at] > 127 else e.code[at], at + 1),
    0x10: lambda e, at: e.push(*read_uleb(e.code, at)),  # constu
    0x11: lambda e, at: e.push(*read_sleb(e.code, at)),  # consts
    0x15: _Evaluation.pick_indexed,
    0x23: _Evaluation.plus_constant,
    0x28: lambda e, at: e.branch(at, always=False),
    0x2F: lambda e, at: e.branch(at, always=True),
    0x92: _Evaluation.register_offset,  # bregx
    0x94: _Evaluation.dereference_sized,
}
