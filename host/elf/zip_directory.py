"""Finds the uncompressed file at an offset of a ZIP archive: Android maps libraries directly from an APK.

Facts: PKWARE APPNOTE 6.3.10, §4.3.7 local file header, §4.3.12 central directory, §4.3.16 its end record. Archives of
the 64-bit form are larger than any APK and are not read.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memleak_android.host.console import one_line

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END_REACH = _END.size + 0xFFFF  # the record and the longest comment after it
_DIRECTORY_BYTES_MAX = 32 << 20
_STORED = 0

Read = Callable[[int, int], bytes]  # offset, size → bytes, fewer at the end of the archive


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An uncompressed file in an archive: `size` bytes from `offset` on."""

    name: str
    offset: int
    size: int


def find_stored(read: Read, archive_bytes: int, offset: int) -> StoredFile | None:
    """The stored file that holds the byte at `offset`; None if there is none or the archive is malformed."""
    tail_bytes = min(archive_bytes, _END_REACH)
    tail = read(archive_bytes - tail_bytes, tail_bytes)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        return None
    directory_bytes, directory = _END.unpack_from(tail, at)[5:7]
    if directory_bytes > _DIRECTORY_BYTES_MAX or directory + directory_bytes > archive_bytes:
        return None
    before = [entry for entry in _entries(read(directory, directory_bytes)) if entry[0] <= offset]
    return _located(read, *max(before), offset) if before else None


def _entries(data: bytes) -> Iterator[tuple[int, int, int, str]]:
    """(offset of the local header, compression method, stored bytes, name) of each file."""
    at = 0
    while at + _CENTRAL.size <= len(data):
        fields = _CENTRAL.unpack_from(data, at)
        if fields[0] != b"PK\1\2":
            return
        method, stored, (name, extra, comment), local = fields[4], fields[8], fields[10:13], fields[16]
        begin = at + _CENTRAL.size
        yield local, method, stored, one_line(data[begin : begin + name].decode("utf-8", "replace"))
        at = begin + name + extra + comment


def _located(read: Read, local: int, method: int, stored: int, name: str, offset: int) -> StoredFile | None:
    """The stored file of a local header, whose name and padding, unlike the directory's, determine its offset."""
    header = read(local, _LOCAL.size)
    if method != _STORED or len(header) != _LOCAL.size or header[:4] != b"PK\3\4":
        return None
    name_bytes, extra_bytes = _LOCAL.unpack(header)[9:11]
    begin = local + _LOCAL.size + name_bytes + extra_bytes
    return StoredFile(name, begin, stored) if begin <= offset < begin + stored else None
