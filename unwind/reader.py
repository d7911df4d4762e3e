"""Little-endian numbers, LEB128 and encoded pointers out of section bytes, with bounds checked."""

import struct
from typing import NamedTuple

from memleak_android.unwind.errors import BadCfiError

U8, U16, U32, U64 = (struct.Struct(f) for f in ("<B", "<H", "<I", "<Q"))
S16, S32, S64 = (struct.Struct(f) for f in ("<h", "<i", "<q"))

DW_EH_PE_OMIT = 0xFF
DW_EH_PE_INDIRECT = 0x80
_ALIGNED = 0x50
_FORMATS = {0x02: U16, 0x03: U32, 0x04: U64, 0x0A: S16, 0x0B: S32, 0x0C: S64}
# the same forms as NumPy types
FIXED_FORMS = {0x02: "<u2", 0x03: "<u4", 0x04: "<u8", 0x0A: "<i2", 0x0B: "<i4", 0x0C: "<i8"}
_LEB_BYTES_MAX = 10  # 64 bits


class PointerBases(NamedTuple):
    """Base addresses for the application part of a pointer encoding (LSB 5.0 §10.5.1).

    section: vaddr of the first byte of the bytes read from; word_bytes: size of an absolute pointer.
    """

    section: int
    word_bytes: int
    text: int = 0
    data: int = 0
    function: int = 0


def read_uleb(data: bytes, at: int) -> tuple[int, int]:
    """Returns (value, offset after it). Raises BadCfiError when it runs out of data or past 64 bits."""
    value = shift = 0
    start = at
    while True:
        if at >= len(data) or at - start >= _LEB_BYTES_MAX:
            raise BadCfiError("a LEB128 number that does not end", start)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def read_sleb(data: bytes, at: int) -> tuple[int, int]:
    """Like read_uleb, signed."""
    start = at
    value, at = read_uleb(data, at)
    bits = 7 * (at - start)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at


def write_sleb(value: int) -> bytes:
    """A signed LEB128 number."""
    encoded = bytearray()
    while not -64 <= value < 64:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value & 0x7F])


def read_number(data: bytes, at: int, form: struct.Struct) -> tuple[int, int]:
    """One fixed-size number: (value, offset after it)."""
    try:
        return form.unpack_from(data, at)[0], at + form.size
    except struct.error:
        raise BadCfiError("it ends in the middle of a number", at) from None


def read_pointer(data: bytes, at: int, encoding: int, bases: PointerBases) -> tuple[int, int]:
    """An encoded pointer (DW_EH_PE_*): (vaddr, offset after it). The indirect bit is left to the caller."""
    if encoding == _ALIGNED:
        at += -(bases.section + at) % bases.word_bytes
        return read_number(data, at, U64 if bases.word_bytes == 8 else U32)
    start = at
    form = encoding & 0x0F
    if form in (0x00, 0x08):
        value, at = read_number(data, at, U64 if bases.word_bytes == 8 else U32)
    elif form == 0x01:
        value, at = read_uleb(data, at)
    elif form == 0x09:
        value, at = read_sleb(data, at)
    elif form in _FORMATS:
        value, at = read_number(data, at, _FORMATS[form])
    else:
        raise BadCfiError(f"unknown pointer encoding {encoding:#04x}", start)
    application = encoding & 0x70
    if application == 0x10:
        value += bases.section + start
    elif application == 0x20:
        value += bases.text
    elif application == 0x30:
        value += bases.data
    elif application == 0x40:
        value += bases.function
    elif application:
        raise BadCfiError(f"unknown pointer encoding {encoding:#04x}", start)
    return value & ((1 << 8 * bases.word_bytes) - 1), at
