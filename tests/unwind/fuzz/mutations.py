"""Deterministic damage: one seed number gives one mutated input, on every machine the same."""

import random
from collections.abc import Callable

# Where sizes, counts and offsets overflow, wrap, change sign or claim the impossible.
_NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 1 << 20, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
            1 << 32, 1 << 40, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)  # fmt: skip
_WIDTHS = (1, 2, 4, 4, 8, 8)
_GROWTH_MAX = 1 << 16
_HEADERS_BYTES = 512  # mutations prefer the beginnings and ends of files: headers and section tables


def mutated(seed: bytes, number: int, others: list[bytes]) -> bytes:
    """The seed with 1 to 16 changes. others: inputs of the same kind, to splice from."""
    chance = random.Random(number)
    data = bytearray(seed)
    for _ in range(1 << chance.randrange(5)):
        chance.choice(_CHANGES)(chance, data, others)
    return bytes(data)


def _offset(chance: random.Random, data: bytearray) -> int:
    if not data:
        return 0
    where = chance.randrange(4)
    if where == 0:
        return chance.randrange(min(_HEADERS_BYTES, len(data)))
    if where == 1:
        return len(data) - 1 - chance.randrange(min(2 * _HEADERS_BYTES, len(data)))
    return chance.randrange(len(data))


def _flip(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    if data:
        data[_offset(chance, data)] ^= 1 << chance.randrange(8)


def _byte(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    if data:
        data[_offset(chance, data)] = chance.randrange(256)


def _number(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    width = chance.choice(_WIDTHS)
    at = _offset(chance, data) // width * width
    value = chance.choice(_NUMBERS) & (1 << 8 * width) - 1
    data[at : at + width] = value.to_bytes(width, "little")


def _nudge(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    width = chance.choice(_WIDTHS)
    at = _offset(chance, data) // width * width
    value = int.from_bytes(data[at : at + width], "little") + chance.choice((-64, -8, -1, 1, 4, 8, 4096))
    data[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")


def _remove(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    at = _offset(chance, data)
    del data[at : at + chance.choice((1, 4, 8, 64, 1024))]


def _repeat(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    at, size = _offset(chance, data), chance.choice((1, 4, 16, 256))
    piece = data[at : at + size] * chance.choice((1, 2, 16, 256))
    if len(piece) <= _GROWTH_MAX:
        data[at:at] = piece


def _splice(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    other = chance.choice(others)
    at, start, size = _offset(chance, data), chance.randrange(len(other) + 1), chance.choice((4, 16, 64, 512))
    data[at : at + size] = other[start : start + size]


def _cut(chance: random.Random, data: bytearray, others: list[bytes]) -> None:
    if chance.randrange(4) == 0:
        del data[_offset(chance, data) :]


_CHANGES: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _flip, _byte, _number, _number, _nudge, _remove, _repeat, _splice, _cut,
)  # fmt: skip
