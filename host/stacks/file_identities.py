"""Files of a device's mappings by build-id, written during a session so that a cut recording finds its modules."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from memleak_android.host.elf.zip_directory import StoredFile
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import Block, BlockKind
from memleak_android.unwind.file_reading import open_regular
from memleak_android.unwind.maps import Mapping


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """path, device and inode: as in /proc/PID/maps. offset, size, name: of the library inside an archive; name "" = the whole file."""

    path: str
    device: str
    inode: int
    build_id: str
    offset: int = 0
    size: int = 0
    name: str = ""

    def shows(self, mapping: Mapping) -> bool:
        return (self.path, self.device, self.inode) == (mapping.path, mapping.device, mapping.inode) and (
            not self.name or self.offset <= mapping.file_offset < self.offset + self.size
        )


def encode_identities(identities: Iterable[FileIdentity]) -> Block:
    return payloads.encode_text(BlockKind.FILES, json.dumps([asdict(each) for each in identities]))


def parse_identity(row: Any) -> FileIdentity | None:
    """From a JSON object; None if it has another shape."""
    if not isinstance(row, dict) or set(row) != {field.name for field in fields(FileIdentity)}:
        return None
    numbers = [row[name] for name in ("inode", "offset", "size")]
    texts = [row[name] for name in ("path", "device", "build_id", "name")]
    if not all(type(number) is int and number >= 0 for number in numbers) or not all(
        isinstance(text, str) for text in texts
    ):
        return None
    return FileIdentity(**row)


class RecordedFiles:
    """Implements FileFinder for a device that is not connected, by copies from earlier sessions.

    copies: of a file, by its build-id. A file of this machine never counts as one of the device, whatever its path.
    """

    opens_early = False

    def __init__(self, identities: Sequence[FileIdentity], copies: Callable[[str], Iterable[Path]]) -> None:
        self._identities: dict[tuple[str, str, int], list[FileIdentity]] = {}
        for each in identities:
            self._identities.setdefault((each.path, each.device, each.inode), []).append(each)
        self._copies = copies
        self.vdso = b""
        self.refused: list[str] = []

    def open(self, pid: int, mapping: Mapping) -> int | None:
        found = self._find(mapping)
        copy = next(iter(self._copies(found.build_id)), None) if found else None
        return open_regular(copy) if copy else None

    def stored(self, pid: int, mapping: Mapping) -> StoredFile | None:
        found = self._find(mapping)
        return StoredFile(found.name, found.offset, found.size) if found and found.name else None

    def _find(self, mapping: Mapping) -> FileIdentity | None:
        known = self._identities.get((mapping.path, mapping.device, mapping.inode), ())
        return next((each for each in known if each.shows(mapping)), None)
