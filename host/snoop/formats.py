"""Formats of arguments and return values, and the memory that the kernel reads for them."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from memleak_android.host.console import one_line
from memleak_android.host.errors import UsageError
from memleak_android.host.wire.calls import ARGUMENTS, RETURN, CaptureKind

STRING_BYTES = 128
CAPTURE_BYTES_MAX = 1008  # of one call, 8 for each head (ML_SNOOP_DATA)
CAPTURES_MAX = 4
_WORD = re.compile(r"([iu](?:8|16|32)|int|uint|hex|ptr|str|buf|fd|-)(\d*)")
_INTEGERS = {"int": (64, True), "uint": (64, False), "hex": (64, False), "fd": (32, True)}
_INTEGERS |= {f"{sign}{bits}": (bits, sign == "i") for sign in "iu" for bits in (8, 16, 32)}
_ESCAPES = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 92: "\\\\"}

Captured = bytes | OSError | None
Shower = Callable[[int, Captured], str]


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """kind: a key of _INTEGERS, str, buf, `-` (hidden), or `?` (unknown). size: bytes read, of str and buf."""

    kind: str
    size: int = 0

    @property
    def capture(self) -> CaptureKind | None:
        """The kind of capture, None for a plain number."""
        return {"str": CaptureKind.STRING, "buf": CaptureKind.BYTES, "fd": CaptureKind.PATH}.get(self.kind)

    @property
    def integer(self) -> tuple[int, bool] | None:
        """Bits of a number, and whether it is signed."""
        return _INTEGERS.get(self.kind)

    def shower(self) -> Shower:
        """The formatter, chosen once for all calls. It takes the register and the captured memory."""
        if self.integer is None or self.kind in ("hex", "fd"):
            return self._show_captured
        bits, is_signed = self.integer
        return lambda value, _: str(_number(value, bits, is_signed))

    def _show_captured(self, value: int, captured: Captured) -> str:
        if self.kind == "fd":
            number = _number(value, 32, is_signed=True)
            if not isinstance(captured, bytes):
                return str(number)
            return f"{number}<{one_line(captured.decode('utf-8', 'replace'))}>"
        if isinstance(captured, bytes):
            return _quoted(captured, len(captured) >= self.size - (self.kind == "str"), self.kind == "buf")
        return f"{value:#x}" if value else "0"


def _number(value: int, bits: int, is_signed: bool) -> int:
    """The low bits of a register."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if is_signed and value >> (bits - 1) else value


HEX = ValueFormat("hex")


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Formats of one function. arguments: of the first arguments; later ones are hidden."""

    arguments: tuple[ValueFormat, ...]
    result: ValueFormat = HEX

    def captures(self) -> list[tuple[int, CaptureKind, int]]:
        """(argument or RETURN, kind, bytes) of each capture."""
        values = [*enumerate(self.arguments), (RETURN, self.result)]
        return [(i, value.capture, value.size) for i, value in values if value.capture is not None]


UNKNOWN = CallFormat((ValueFormat("?"),) * ARGUMENTS)


def parse_call_format(text: str) -> CallFormat:
    """Parses `str,hex,buf64->fd`: a word per argument, and behind -> the return value's. Raises UsageError."""
    arguments, arrow, result = text.partition("->")
    words = [word.strip() for word in arguments.split(",")] if arguments.strip() else []
    if len(words) > ARGUMENTS:
        raise UsageError(f"{text!r} has {len(words)} arguments", f"the first {ARGUMENTS} are read")
    made = CallFormat(tuple(map(_parse_word, words)), _parse_word(result.strip()) if arrow else HEX)
    captures = [capture for capture in made.captures() if capture[1] != CaptureKind.PATH]
    if len(made.captures()) > CAPTURES_MAX:
        raise UsageError(
            f"{text!r} reads memory of {len(made.captures())} values", f"name {CAPTURES_MAX} at most"
        )
    if sum(size + 16 for _, _, size in captures) > CAPTURE_BYTES_MAX:
        raise UsageError(f"{text!r} reads too much", f"{CAPTURE_BYTES_MAX} bytes of a call at most")
    return made


def _parse_word(word: str) -> ValueFormat:
    match = _WORD.fullmatch(word)
    if match is None or (match[2] and match[1] not in ("str", "buf")):
        raise UsageError(
            f"{word!r} is not a format", "write int, iN, uint, uN, hex, str, strN, bufN, fd or -"
        )
    kind = "hex" if match[1] == "ptr" else match[1]
    if kind == "buf" and not match[2]:
        raise UsageError("buf without a size", "write bufN for N bytes, such as buf64")
    size = int(match[2] or STRING_BYTES) + (kind == "str") if kind in ("str", "buf") else 0
    if size and not 1 <= size <= CAPTURE_BYTES_MAX - 16:
        raise UsageError(f"{word!r} reads too much", f"{CAPTURE_BYTES_MAX - 17} bytes at most")
    return ValueFormat(kind, size)


def _quoted(data: bytes, is_cut: bool, is_binary: bool) -> str:
    shown = "".join(
        _ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in data
    )
    if not is_binary:
        text = data.decode("utf-8", "replace")
        if text.isprintable() and "�" not in text:
            shown = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{shown}"' + ("…" if is_cut and not is_binary else "")
