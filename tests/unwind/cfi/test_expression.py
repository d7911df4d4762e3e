"""DWARF expressions: each operation, what is refused, and folding."""

import struct

import pytest

from memleak_android.unwind.cfi.expression import Linear, evaluate, fold
from memleak_android.unwind.errors import ExpressionError, UnreadableMemoryError
from tests.support.builders.cfi_assembler import sleb, uleb

MASK = 2**64 - 1


class Machine:
    """Registers 0 … 16 hold 0x1000 * number; memory at 0x7000 … 0x7fff holds its own address."""

    word_bytes = 8

    def register(self, number: int) -> int:
        if number > 16:
            raise ExpressionError(f"register {number}")
        return 0x1000 * number

    def memory(self, address: int, size: int) -> int:
        if not 0x7000 <= address < 0x8000:
            raise UnreadableMemoryError(address)
        return address & ((1 << 8 * size) - 1)


def lit(n: int) -> bytes:
    return bytes([0x30 + n])


def const(n: int) -> bytes:
    return b"\x11" + sleb(n)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (lit(31), 31),
        (b"\x03" + struct.pack("<Q", 77), 77),
        (b"\x08\xff", 255),
        (b"\x09\xff", MASK),
        (b"\x0a\xff\xff", 0xFFFF),
        (b"\x0b\xff\xff", MASK),
        (b"\x0c\xff\xff\xff\xff", 0xFFFFFFFF),
        (b"\x0d\xff\xff\xff\xff", MASK),
        (b"\x0e" + b"\xff" * 8, MASK),
        (b"\x0f" + b"\xff" * 8, MASK),
        (b"\x10" + uleb(300), 300),
        (const(-300), -300 & MASK),
        (b"\x57", 0x7000),
        (b"\x77" + sleb(-8), 0x6FF8),
        (b"\x92" + uleb(7) + sleb(8), 0x7008),
        (b"\x77\x08\x06", 0x7008),
        (b"\x77\x08\x94\x01", 0x08),
        (lit(4) + b"\x12\x22", 8),
        (lit(4) + lit(5) + b"\x13", 4),
        (lit(4) + lit(5) + b"\x14", 4),
        (lit(4) + lit(5) + lit(6) + b"\x15\x02", 4),
        (lit(4) + lit(5) + b"\x16\x1c", 1),
        (lit(1) + lit(2) + lit(3) + b"\x17", 2),
        (lit(1) + lit(2) + lit(3) + b"\x17\x13\x13", 3),
        (const(-5) + b"\x19", 5),
        (lit(6) + lit(3) + b"\x1a", 2),
        (const(-7) + lit(2) + b"\x1b", -3 & MASK),
        (lit(7) + lit(9) + b"\x1c", -2 & MASK),
        (lit(7) + lit(4) + b"\x1d", 3),
        (lit(7) + lit(4) + b"\x1e", 28),
        (lit(7) + b"\x1f", -7 & MASK),
        (lit(7) + b"\x20", ~7 & MASK),
        (lit(6) + lit(3) + b"\x21", 7),
        (lit(6) + b"\x23\x05", 11),
        (lit(6) + lit(2) + b"\x24", 24),
        (const(-1) + lit(31) + lit(31) + b"\x22" + lit(1) + b"\x22\x25", 1),
        (const(-8) + lit(1) + b"\x26", -4 & MASK),
        (lit(6) + lit(3) + b"\x27", 5),
        (lit(1) + lit(0) + b"\x28\x01\x00" + lit(2) + lit(3), 3),
        (lit(9) + b"\x2f\x01\x00" + lit(2), 9),
        (const(-1) + lit(1) + b"\x2d", 1),
        (lit(1) + lit(1) + b"\x29\x96", 1),
    ],
)
def test_values(code: bytes, value: int) -> None:
    assert evaluate(code, Machine()) == value


def test_initial_value_is_on_the_stack() -> None:
    assert evaluate(b"\x23\x08", Machine(), 0x100) == 0x108


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"\x22",
        b"\xf0",
        b"\x0a\x01",
        lit(1) + lit(0) + b"\x1b",
        b"\x2f\xfd\xff",
        b"\x2f\x00\x7f",
        b"\x90\x01\x00",
        b"\x77\x08\x94\x03",
    ],
)
def test_refused(code: bytes) -> None:
    with pytest.raises(ExpressionError):
        evaluate(code, Machine())


def test_unreadable_memory_is_reported_as_such() -> None:
    with pytest.raises(UnreadableMemoryError):
        evaluate(lit(8) + b"\x06", Machine())


@pytest.mark.parametrize(("pc", "offset"), [(0x1000, 8), (0x100A, 8), (0x100B, 16), (0x100F, 16)])
def test_plt_expression_folds(pc: int, offset: int) -> None:
    """breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus: the CFA of .plt entries (binutils, lld)."""
    code = bytes.fromhex("770880003f1a3b2a332422")
    assert fold(code, {16: pc}, 8) == Linear(7, offset)


def test_a_number_and_a_register_fold() -> None:
    assert fold(lit(8) + b"\x77\x01\x22", {}, 8) == Linear(7, 9)


@pytest.mark.parametrize("code", [b"\x77\x08\x06", lit(3), b"\x77\x00\x76\x00\x22", b"\x77\x00\x1f", b"\xff"])
def test_what_does_not_fold(code: bytes) -> None:
    assert fold(code, {16: 0}, 8) is None
