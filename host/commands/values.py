"""Types of option values: durations, sizes, limits, rates, shares, labels and process numbers."""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from memleak_android.host.profile.gate import GrowthLimit, LeakLimit

if TYPE_CHECKING:  # a generic class only in newer releases of click
    AnyType = click.ParamType[Any, Any]
else:
    AnyType = click.ParamType

_DURATION_UNITS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "sec": 10**9,
    "s": 10**9,
}  # before one that begins another
_DURATION_UNITS |= {"min": 60 * 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION_PART = rf"(\d+(?:\.\d+)?)({'|'.join(_DURATION_UNITS)})"
_SIZE_UNITS = {"": 1, "B": 1, "K": 2**10, "KiB": 2**10, "M": 2**20, "MiB": 2**20, "G": 2**30, "GiB": 2**30}
_SIZE_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE_UNIT_BY_NAME = {unit.lower(): factor for unit, factor in _SIZE_UNITS.items()}
_RATE_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "run": 1.0}
_MAX = 2**64 - 1


class Value(AnyType):
    """A value with units. parse: raises ValueError with the message for the user."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._parse(value.strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _fail(text: str, what: str, examples: str) -> NoReturn:
    raise ValueError(f"{text!r} is not a {what} (write {examples})")


def _duration(text: str) -> int:
    """Nanoseconds. A bare number is seconds."""
    written = f"{text}s" if re.fullmatch(r"[\d.]+", text) else text
    is_sum = re.fullmatch(f"(?:{_DURATION_PART})+", written)
    parts = re.findall(_DURATION_PART, written) if is_sum else []
    result = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts) if parts else -1
    return round(result) if 0 <= result <= _MAX else _fail(text, "duration", "500ms, 5s or 1m30s")


def _span(text: str) -> int:
    """A duration that is not 0."""
    return _duration(text) or _fail(text, "time to wait", "500ms, 5s or 1m30s")


def _pid(text: str) -> int:
    is_number = text.isdecimal() and 0 < int(text) < 2**31
    name = text if re.fullmatch(r"[A-Za-z][\w.-]*", text) else "NAME"
    return int(text) if is_number else _fail(text, "process number", f"one, as `pgrep {name}` prints it")


def _size(text: str) -> int:
    """Bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    factor = _SIZE_UNIT_BY_NAME.get(match[2].lower()) if match else None
    if not match or not factor:
        _fail(text, "size", "4096, 64K or 1MiB")
    size = int(Fraction(match[1]) * factor)
    if size > _MAX:
        raise ValueError(f"{text!r} is more than an address space holds")
    return size


def _limit(text: str) -> LeakLimit:
    """BYTES or BYTES,COUNT."""
    space, comma, objects = text.partition(",")
    if comma and not objects.strip().isdecimal():
        _fail(text, "limit", "64K or 64K,100")
    return LeakLimit(_size(space.strip()), int(objects) if comma else None)


def _rate(text: str) -> GrowthLimit:
    space, _, per = text.partition("/")
    seconds = _RATE_SECONDS.get(per.strip())
    if seconds is None:
        _fail(text, "rate", "100K/min, 1MB/h or, of a scenario, 64/run")
    return GrowthLimit(_size(space.strip()) / seconds, per.strip() == "run")


def _share(text: str) -> float:
    """A fraction, written 0.1% or 0.001."""
    try:
        result = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        result = -1.0
    return result if 0 <= result <= 1 else _fail(text, "share", "0.1% or 0.001")


def _label(text: str) -> tuple[str, str]:
    """KEY=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z][\w.-]{0,39}", name) or len(value) > 200:
        _fail(text, "label", "version=1.2; 200 characters at most")
    return name, value


DURATION, SIZE, LIMIT = Value("time", _duration), Value("size", _size), Value("limit", _limit)
RATE, SHARE, LABEL = Value("rate", _rate), Value("share", _share), Value("label", _label)
PID, SPAN = Value("pid", _pid), Value("time", _span)
FILE, EXISTING = click.Path(path_type=Path), click.Path(exists=True, path_type=Path)
TID, ONE_OR_MORE, JOBS = click.IntRange(1, 2**31 - 1), click.IntRange(1), click.IntRange(1, 256)
