"""The file around the records: header, events, and facts about the machine (perf.data-file-format.txt)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import numpy as np

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data import records
from memleak_android.host.perf_data.event import Event, read_event
from memleak_android.host.perf_data.records import COMPRESSED, COMPRESSED2, Area, bytes_behind, find_records
from memleak_android.unwind.file_reading import contents, opened
from memleak_android.unwind.file_writing import unnamed_file

_MAGIC, _MAGIC_SWAPPED = b"PERFILE2", b"2ELIFREP"
_HEADER = struct.Struct("<8sQQQQQQ16x4Q")  # magic, size, attribute size, attributes, data, features
_PIPE_HEADER_BYTES = 16
_SECTION = struct.Struct("<QQ")
_BUILD_ID, _EVENT_DESC = 2, 12  # features
_TEXTS = {3: "host", 4: "release", 6: "machine"}  # by feature
_BUILD_ID_SIZE_KNOWN = 1 << 15  # of misc
_EVENTS_MAX = 4096
_TEXT_MAX = 4096
_NAME_UPDATE = 2


@dataclass(slots=True)
class PerfData:
    """A recording.

    build_ids: hex, by path.
    machine, host, release: "" if unknown.
    cut: bytes of an incomplete record at the end, or that the header promises and the file lacks.
    """

    path: Path
    events: list[Event] = field(default_factory=list)
    areas: list[Area] = field(default_factory=list)
    machine: str = ""  # uname -m
    host: str = ""
    release: str = ""  # uname -r
    build_ids: dict[str, str] = field(default_factory=dict)
    cut: int = 0


def open_perf_data(path: Path) -> PerfData:
    """Raises RecordingError if the file is not a perf.data or has no event."""
    data = _map(path)
    if bytes(data[:8]) == _MAGIC_SWAPPED:
        raise RecordingError(
            f"could not read {path}: it comes from a big-endian machine",
            "only little-endian ones are supported",
        )
    if bytes(data[:8]) != _MAGIC or len(data) < _PIPE_HEADER_BYTES:
        raise RecordingError(
            f"could not read {path}: it is not a perf.data", "make one with `perf record --call-graph dwarf`"
        )
    recording = PerfData(path)
    if struct.unpack_from("<Q", data, 8)[0] == _PIPE_HEADER_BYTES:
        _add_area(recording, data, _PIPE_HEADER_BYTES, len(data))
    else:
        _read_seekable(recording, data)
    for area in recording.areas:
        _read_metadata(recording, area)
    if not recording.events:
        raise RecordingError(
            f"could not read {path}: it has no event", "it was cut before the first one; record again"
        )
    return recording


def _map(path: Path) -> memoryview:
    try:
        with opened(path) as file:
            data = contents(file.fileno(), path)
    except OSError as error:
        raise RecordingError(f"could not read {path}: {error.strerror}", "name a perf.data") from None
    if not data:
        raise RecordingError(f"could not read {path}: it is empty", "name a perf.data")
    return data


def _read_seekable(recording: PerfData, data: memoryview) -> None:
    path = recording.path
    if len(data) < _HEADER.size:
        raise RecordingError(f"could not read {path}: its header is cut", "record again")
    _, _, step, attributes, attributes_bytes, begin, size, *features = _HEADER.unpack_from(data)
    if begin & 7 or begin > len(data):
        raise RecordingError(f"could not read {path}: its records begin at {begin:#x}", "record again")
    # A killed recorder leaves the size 0.
    end = begin + size if size else len(data)
    recording.cut += max(end - len(data), 0)
    _read_features(recording, data, begin + size, features if size else [])
    _read_attributes(recording, data, attributes, attributes_bytes, step)
    _add_area(recording, data, begin, end)


def _read_attributes(recording: PerfData, data: memoryview, begin: int, size: int, step: int) -> None:
    """perf_file_attr: an attribute and the section of its ids."""
    names = {event.ids: event.name for event in recording.events}
    recording.events.clear()
    if step < _SECTION.size or begin + size > len(data):
        raise RecordingError(
            f"could not read {recording.path}: its events lie outside the file", "record again"
        )
    for at in range(begin, begin + min(size, step * _EVENTS_MAX) - step + 1, step):
        attribute = bytes(data[at : at + step - _SECTION.size])
        ids = _ids(data, *_SECTION.unpack_from(data, at + step - _SECTION.size))
        recording.events.append(read_event(attribute, ids, names.get(ids, "")))


def _ids(data: memoryview, begin: int, size: int) -> tuple[int, ...]:
    whole = data[begin : begin + size]
    return tuple(np.frombuffer(whole[: len(whole) & ~7], "<u8").tolist())


def _read_features(recording: PerfData, data: memoryview, at: int, words: list[int]) -> None:
    for number in range(64 * len(words)):
        if words[number // 64] >> number % 64 & 1 and at + _SECTION.size <= len(data):
            begin, size = _SECTION.unpack_from(data, at)
            _read_feature(recording, number, data[begin : begin + size])
            at += _SECTION.size


def _read_feature(recording: PerfData, number: int, content: memoryview) -> None:
    if number in _TEXTS:
        setattr(recording, _TEXTS[number], _text(content))
    elif number == _BUILD_ID:
        for at, _, misc, size in walk_unaligned(content, 0, len(content)):
            _read_build_id(recording, content[at + 8 : at + size], misc)
    elif number == _EVENT_DESC:
        _read_event_names(recording, content)


def _text(content: memoryview) -> str:
    """A string behind its length, padded with NULs."""
    return bytes(content[4 : 4 + _TEXT_MAX]).split(b"\0")[0].decode("utf-8", "replace")


def _read_build_id(recording: PerfData, record: memoryview, misc: int) -> None:
    """perf_record_header_build_id: pid, 20 bytes, their count, the file's name."""
    content = bytes(record)
    if len(content) >= 28:
        size = min(content[24], 20) if misc & _BUILD_ID_SIZE_KNOWN else 20
        name = content[28:].split(b"\0")[0].decode("utf-8", "replace")
        recording.build_ids[name] = content[4 : 4 + size].hex()


def _read_event_names(recording: PerfData, content: memoryview) -> None:
    """For each event: attribute, number of ids, name, ids."""
    if len(content) < 8:
        return
    count, size = struct.unpack_from("<II", content)
    at = 8
    for _ in range(min(count, _EVENTS_MAX)):
        if at + size + 8 > len(content):
            return
        attribute, (ids, length) = content[at : at + size], struct.unpack_from("<II", content, at + size)
        at += size + 8
        name = bytes(content[at : at + min(length, _TEXT_MAX)]).split(b"\0")[0].decode("utf-8", "replace")
        at += length
        recording.events.append(read_event(bytes(attribute), _ids(content, at, 8 * ids), name))
        at += 8 * ids


def _add_area(recording: PerfData, data: memoryview, begin: int, end: int) -> None:
    end = min(end, len(data))
    area = find_records(data, begin, end)
    recording.areas.append(area)
    if area.left < 8:
        recording.cut += area.left
        return
    *parts, left = align_records(recording.path, data, end - area.left, end)
    recording.cut += left
    for part in parts:
        aligned = find_records(part, 0, len(part))
        recording.cut += aligned.left
        recording.areas.append(aligned)


def _read_metadata(recording: PerfData, area: Area) -> None:
    """Reads attributes, features and build-ids that a pipe recording carries as records."""
    kinds = area.types
    is_metadata = np.isin(kinds, (records.ATTRIBUTE, records.BUILD_ID, records.EVENT_UPDATE, records.FEATURE))
    for number in np.flatnonzero(is_metadata)[: 1 << 20].tolist():
        content = area.record(number)
        if kinds[number] == records.BUILD_ID:
            _read_build_id(recording, content, int(area.misc[number]))
        elif kinds[number] == records.FEATURE and len(content) >= 8:
            feature = struct.unpack_from("<Q", content)[0]
            if feature != _EVENT_DESC:
                _read_feature(recording, feature, content[8:])
        elif kinds[number] == records.ATTRIBUTE and len(content) >= 8 and len(recording.events) < _EVENTS_MAX:
            size = struct.unpack_from("<I", content, 4)[0]
            recording.events.append(read_event(bytes(content[:size]), _ids(content, size, len(content))))
        elif kinds[number] == records.EVENT_UPDATE:
            _rename(recording, bytes(content))


def _rename(recording: PerfData, update: bytes) -> None:
    if len(update) < 17 or struct.unpack_from("<Q", update)[0] != _NAME_UPDATE:
        return
    identity = struct.unpack_from("<Q", update, 8)[0]
    name = update[16:].split(b"\0")[0].decode("utf-8", "replace")
    for i, event in enumerate(recording.events):
        if identity in event.ids:
            recording.events[i] = replace(event, name=name)


# PERF_RECORD_COMPRESSED is as long as zstd's output (COMPRESSED2 of kernel commit 208c0e168344, v6.16, is padded), and
# PERF_RECORD_HEADER_FEATURE in a pipe is as long as its text.
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
