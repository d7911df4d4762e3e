"""The files of a snapshot folder: registers, mappings, captured memory. Nothing outside the folder is ever read."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memleak_android.unwind.errors import BadSnapshotError
from memleak_android.unwind.file_reading import read_file
from memleak_android.unwind.maps import Mapping

_FILE_BYTES_MAX = 1 << 30
_TEXT_BYTES_MAX = 1 << 26
_LINES_MAX = 1 << 18
_PAGE = 4096
_REGISTER = re.compile(r"\s*(\w{1,32})\s*:\s*(?:0[xX])?([0-9a-fA-F]{1,16})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file of the folder whose bytes [file_offset, file_offset + size) lay at `start`. size None: to its end.

    start None: the file begins with its address, as every *.data does.
    """

    name: str
    start: int | None = None
    file_offset: int = 0
    size: int | None = None


def file_in(folder: Path, name: str) -> Path | None:
    """A regular file of the folder; None for what is missing, is none, or is a link that leads out of the folder.

    Snapshots are untrusted: a link to ~/.ssh or to a device must not be followed. Raises OSError.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return None
    path = folder / name
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        return None
    return path


def read_registers(folder: Path) -> dict[str, int]:
    """regs.txt: register names of any architecture with their values. Raises BadSnapshotError."""
    path = folder / "regs.txt"
    values = {}
    for number, line in _lines(folder, path.name):
        match = _REGISTER.fullmatch(line)
        if match is None:
            raise BadSnapshotError(
                path, f"line {number} is not a register: {line[:60]!r}", "expected `name: hex`"
            )
        values[match[1].lower()] = int(match[2], 16)
    if not values:
        raise BadSnapshotError(path, "it names no register", "expected lines `name: hex`")
    return values


def read_mappings(folder: Path) -> list[Mapping]:
    """maps.txt: the text of /proc/PID/maps. Raises BadSnapshotError."""
    return [_mapping(folder / "maps.txt", number, line) for number, line in _lines(folder, "maps.txt")]


def read_memory(
    folder: Path, names: Sequence[str] | None, more: Iterable[MemoryFile]
) -> list[tuple[int, memoryview]]:
    """(address, bytes) of *.data, or of those in `names`, and of `more`. Raises BadSnapshotError."""
    if names is None:
        names = sorted(path.name for path in folder.glob("*.data"))
    return [_region(folder, file) for file in (*map(MemoryFile, names), *more)]


def _region(folder: Path, file: MemoryFile) -> tuple[int, memoryview]:
    data, start = _content(folder, file.name), file.start
    if start is None:
        if len(data) < 8:
            raise BadSnapshotError(
                folder / file.name, "no start address", "8 bytes of address, then the memory"
            )
        start, data = int.from_bytes(data[:8], "little"), data[8:]
    end = len(data) if file.size is None else file.file_offset + file.size
    return start, data[file.file_offset : end]


def _content(folder: Path, name: str) -> memoryview:
    path = folder / name
    try:
        if file_in(folder, name) is None:
            path.stat()  # says whether it is missing
            raise BadSnapshotError(path, "not a regular file of the folder", "put the file itself there")
        return memoryview(read_file(path, _FILE_BYTES_MAX))
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadSnapshotError(path, reason, "a snapshot folder needs it") from None


def _lines(folder: Path, name: str) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers; however the writer ended them."""
    content = _content(folder, name)
    if len(content) > _TEXT_BYTES_MAX:
        raise BadSnapshotError(
            folder / name, f"larger than {_TEXT_BYTES_MAX} bytes", "give the text of one process"
        )
    lines = bytes(content).decode("utf-8-sig", "replace").splitlines()
    if len(lines) > _LINES_MAX:
        raise BadSnapshotError(folder / name, f"more than {_LINES_MAX} lines", "give the text of one process")
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def _mapping(path: Path, number: int, line: str) -> Mapping:
    """Some writers give the last byte instead of the end, which is a multiple of the page size."""
    fields = line.split(None, 5)
    low, _, high = fields[0].partition("-")
    try:
        start, end = int(low, 16), int(high, 16)
        permissions, offset = fields[1], int(fields[2], 16)
        end += end % _PAGE == _PAGE - 1
        if not 0 <= start < end <= 1 << 64 or offset >> 63:
            raise ValueError
        end = min(end, (1 << 64) - 1)  # as all addresses, ends are numbers of 64 bits
    except (ValueError, IndexError):
        raise BadSnapshotError(
            path, f"line {number} is not a mapping: {line[:60]!r}", "expected the text of /proc/PID/maps"
        ) from None
    return Mapping(start, end, permissions, offset, fields[5] if len(fields) > 5 else "")
