"""Requested functions: LIB:FUNC on the command line, or groups in a TOML file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memleak_android.host.errors import UsageError
from memleak_android.host.pairs.schema import read_document

_PART = re.compile(r"(?<!:):(?!:)")  # LIB:FUNC, but not the :: of C++
_OFFSET = re.compile(r"\+0x([0-9a-fA-F]+)")
_GLOB = re.compile(r"[*?\[]")
_KEYS = {"path", "functions", "symbols", "arguments"}

_HELP = "see docs/use/snoop.md"


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    """A request for functions.

    library: a path, file name, soname or glob of one; "" is the program itself.
    symbol: a name as in the file or demangled, a glob of either, or +0x… as an offset in the file.
    display: the printed name, "" = the symbol's own.
    arguments: format of its values, "" = the default.
    """

    library: str
    symbol: str
    display: str = ""
    arguments: str = ""

    @property
    def text(self) -> str:
        return f"{self.library}:{self.symbol}" if self.library else self.symbol

    @property
    def file_offset(self) -> int | None:
        match = _OFFSET.fullmatch(self.symbol)
        return int(match[1], 16) if match else None

    @property
    def is_glob(self) -> bool:
        return (
            self.file_offset is None
            and not self.symbol.startswith("operator")
            and bool(_GLOB.search(self.symbol))
        )


def parse_request(text: str) -> FunctionRequest:
    """`libc.so.6:malloc`, `main`, `libfoo.so:ns::Class::method`, `app:+0x1234`. Raises UsageError."""
    parts = _PART.split(text, maxsplit=1)
    library, symbol = (parts[0], parts[1]) if len(parts) == 2 else ("", parts[0])
    if not symbol.strip():
        raise UsageError(
            f"{text!r} names no function", "write LIB:FUNCTION, or FUNCTION of the program itself"
        )
    if symbol.startswith("+") and _OFFSET.fullmatch(symbol) is None:
        raise UsageError(f"{text!r}: {symbol} is not an offset in a file", "write +0x and hexadecimal digits")
    return FunctionRequest(library.strip(), symbol.strip())


def read_group_file(path: Path) -> list[FunctionRequest]:
    """A table for each group of functions of one library: docs/use/snoop.md, "Group files". Raises UsageError."""
    found: list[FunctionRequest] = []
    for name, table in read_document(path, _HELP).items():
        found += _group(f"{path}: [{name}]", table)
    if not found:
        raise UsageError(f"{path} names no functions", _HELP)
    return found


def _group(label: str, table: Any) -> list[FunctionRequest]:
    if not isinstance(table, dict):
        raise UsageError(f"{label} is not a table", "write [group], then path = … and functions = …")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise UsageError(f"{label}: unknown key {unknown[0]}", f"known are {', '.join(sorted(_KEYS))}")
    library, plain, named = table.get("path", ""), table.get("functions", []), table.get("symbols", {})
    formats = table.get("arguments", {})
    if not isinstance(library, str) or not _are_texts(plain) or not _are_texts_by_name(named):
        raise UsageError(f"{label} is not understood", "path: text, functions: list, symbols: name = symbol")
    if not _are_texts_by_name(formats):
        raise UsageError(f"{label}: arguments is not understood", "write name = format")
    asked = [("", symbol) for symbol in plain] + list(named.items())
    return [
        FunctionRequest(library, symbol, display, formats.get(display or symbol, ""))
        for display, symbol in asked
    ]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _are_texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) and one for one in value.values())
