"""Parsers of texts from a Linux machine. Nothing here reads a file or runs a command.

A line ends at a line feed only: names that a target chooses may hold the other characters at which splitlines() splits.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from memleak_android.host.console import LINE_CHARACTERS_MAX, one_line
from memleak_android.unwind.maps import Mapping

_ESCAPE = re.compile(r"\\([0-7]{3})")
_DECIMAL = re.compile(r"[0-9]{1,19}")  # of more digits int() may refuse to read
_ADDRESS_END = 1 << 64
_OBJECTS_MAX = 4096
_LOAD_ADDRESS = re.compile(r" \(0x[0-9a-fA-F]{1,16}\)$")


def parse_maps(text: str) -> list[Mapping]:
    """Mappings of /proc/PID/maps (proc(5)). Malformed lines are skipped."""
    found = []
    for line in text.split("\n"):
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
    parent: int
    has_memory: bool  # kernel threads and ending processes have none
    has_threads: bool  # more than one
    namespace_pids: tuple[int, ...]  # outermost first


def parse_status(text: str) -> ProcessStatus:
    """Raises ValueError if the text is not /proc/PID/status."""
    fields = dict(line.split(":", 1) for line in text.split("\n") if ":" in line)
    try:
        return ProcessStatus(
            name=fields["Name"].strip(),
            state=fields["State"].split()[0],
            tgid=int(fields["Tgid"]),
            uid=int(fields["Uid"].split()[1]),
            parent=int(fields["PPid"]),
            has_memory="VmSize" in fields,
            has_threads=int(fields.get("Threads", 1)) > 1,
            namespace_pids=tuple(int(word) for word in fields.get("NSpid", fields["Tgid"]).split()),
        )
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"no /proc/PID/status: {error}") from error


def parse_auxv(data: bytes) -> dict[int, int]:
    """/proc/PID/auxv of a 64-bit process: values by type (<elf.h>, AT_*)."""
    return dict(struct.iter_unpack("<QQ", data[: len(data) & ~15]))


def parse_listed(text: str) -> Iterator[str]:
    """Paths of a linker's lines, such as `libc.so => /system/lib64/libc.so (0x7f…)`. Names that are not files (the vdso) are skipped."""
    for line in text.split("\n")[:_OBJECTS_MAX]:
        shown = line.strip()
        found = _LOAD_ADDRESS.search(shown)
        path = shown[: found.start()] if found else ""
        name, arrow, target = path.partition(" => ")
        path = target if arrow and not name.startswith("/") else path
        if "/" in path:
            yield path


def last_line(text: bytes | bytearray) -> str:
    """The last non-empty line of a program's output, printable and short."""
    lines = bytes(text[-(LINE_CHARACTERS_MAX << 4) :]).decode("utf-8", "replace").strip().splitlines()
    return one_line(lines[-1].strip()) if lines else ""
