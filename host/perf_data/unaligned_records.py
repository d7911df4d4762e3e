"""Aligns records that do not begin at multiples of 8: those behind a compressed record, and those of a pipe.

PERF_RECORD_COMPRESSED is as long as zstd's output (COMPRESSED2 of kernel commit 208c0e168344, v6.16, is padded), and
PERF_RECORD_HEADER_FEATURE in a pipe is as long as its text.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data.records import COMPRESSED, COMPRESSED2, bytes_behind
from memleak_android.unwind.file_reading import contents
from memleak_android.unwind.file_writing import unnamed_file

_HEAD = struct.Struct("<IHH")  # type, misc, size
_GROWTH_MAX = 1000  # times the file; stacks of zeros shrink to a hundredth
_GROWTH_FREE = 64 << 20  # bytes; below that any growth is fine
_PIECE = 1 << 20


def align_records(path: Path, data: memoryview, begin: int, end: int) -> tuple[memoryview, memoryview, int]:
    """(records, decompressed records, bytes at the end without a record); the first two in unnamed files.

    Raises RecordingError for compressed records without zstandard, or that decompress to absurd sizes.
    """
    with (
        unnamed_file() as aligned,
        unnamed_file() as packed,
        unnamed_file() as out,
    ):
        done = begin
        for at, kind, misc, size in walk_unaligned(data, begin, end):
            record = data[at : at + size]
            done = at + size + bytes_behind(data, at, size)
            if kind in (COMPRESSED, COMPRESSED2):
                packed.write(_packed(record, kind))
            elif size <= 0xFFF8:  # a longer one, padded, exceeds u16: a text of perf's
                aligned.write(_HEAD.pack(kind, misc, (size + 7) & ~7))
                aligned.write(record[8:])
                aligned.write(bytes(-size % 8))
        if packed.tell():
            packed.seek(0)
            _unpack(path, packed, out, max(_GROWTH_MAX * len(data), _GROWTH_FREE))
        return _mapped(aligned), _mapped(out), end - done


def walk_unaligned(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (offset, type, misc, size) of each record."""
    while at + 8 <= end:
        kind, misc, size = _HEAD.unpack_from(data, at)
        behind = bytes_behind(data, at, size)
        if size < 8 or at + size + behind > end:
            return
        yield at, kind, misc, size
        at += size + behind


def _packed(record: memoryview, kind: int) -> memoryview:
    if kind == COMPRESSED2 and len(record) >= 16:
        return record[16 : 16 + int(struct.unpack_from("<Q", record, 8)[0])]
    return record[8:]


def _unpack(path: Path, packed: IO[bytes], out: IO[bytes], limit: int) -> None:
    """Decompresses as much as a cut stream holds."""
    try:
        import zstandard
    except ImportError:
        raise RecordingError(
            f"could not read {path}: it is compressed", "install the package zstandard, or record without -z"
        ) from None
    reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    try:
        while piece := reader.read(_PIECE):
            out.write(piece)
            if out.tell() > limit:
                raise RecordingError(
                    f"could not read {path}: it unpacks to more than {limit} bytes", "record without -z"
                )
    except zstandard.ZstdError as error:
        if not out.tell():
            raise RecordingError(f"could not unpack {path}: {error}", "record without -z") from None


def _mapped(file: IO[bytes]) -> memoryview:
    file.flush()
    if not file.tell():
        return memoryview(b"")
    return contents(file.fileno(), "")
