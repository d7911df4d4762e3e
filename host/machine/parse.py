"""Parsers of texts from a Linux machine. Nothing here reads a file or runs a command."""

from __future__ import annotations

import re
from dataclasses import dataclass

from memleak_android.host.console import LINE_CHARACTERS_MAX, one_line
from memleak_android.unwind.maps import Mapping

_ESCAPE = re.compile(r"\\([0-7]{3})")
_DECIMAL = re.compile(r"[0-9]{1,19}")  # of more digits int() may refuse to read
_ADDRESS_END = 1 << 64


def parse_maps(text: str) -> list[Mapping]:
    """Mappings of /proc/PID/maps (proc(5)). Malformed lines are skipped."""
    found = []
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        start, dash, end = fields[0].partition("-")
        try:
            low, high, offset, inode = int(start, 16), int(end, 16), int(fields[2], 16), int(fields[4])
        except ValueError:
            continue
        if dash and 0 <= low < high <= _ADDRESS_END and 0 <= offset < _ADDRESS_END:
            path = _unescape(fields[5]) if len(fields) == 6 else ""
            found.append(Mapping(low, high, fields[1], offset, path, fields[3], inode))
    return found


def _unescape(path: str) -> str:
    """Decodes \\012, a newline as seq_path() writes it; maps escape nothing else."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path) if "\\" in path else path


def decimal(text: str | bytes) -> int | None:
    """A non-negative number in ASCII digits; None for any other text."""
    shown = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    return int(shown) if _DECIMAL.fullmatch(shown) else None


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """Fields of /proc/PID/status. state: its letter. uid: the effective one."""

    name: str
    state: str
    tgid: int
    uid: int
    has_memory: bool  # kernel threads and zombies have none
    namespace_pids: tuple[int, ...]  # outermost first


def parse_status(text: str) -> ProcessStatus:
    """Raises ValueError if the text is not /proc/PID/status."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        return ProcessStatus(
            name=fields["Name"].strip(),
            state=fields["State"].split()[0],
            tgid=int(fields["Tgid"]),
            uid=int(fields["Uid"].split()[1]),
            has_memory="VmSize" in fields,
            namespace_pids=tuple(int(word) for word in fields.get("NSpid", fields["Tgid"]).split()),
        )
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"no /proc/PID/status: {error}") from error


def last_line(text: bytes | bytearray) -> str:
    """The last non-empty line of a program's output, printable and short."""
    lines = bytes(text[-(LINE_CHARACTERS_MAX << 4) :]).decode("utf-8", "replace").strip().splitlines()
    return one_line(lines[-1].strip()) if lines else ""
