"""The recording file `*.memleak`: a 16-byte file header, then blocks (host/wire/blocks.py).

During the session the file is readable by the user only and holds the blocks as they arrive, flushed after each: after a
crash everything up to the last whole block can be read. A finished recording is written to a second file and renamed in
one step. It holds frames, counters and modules, and stack bytes only on request.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from memleak_android.host.errors import OutputExistsError, RecordingError
from memleak_android.host.wire.blocks import (
    BLOCK,
    WIRE_VERSION,
    Block,
    BlockParser,
    BrokenStream,
    encode_block,
    read_blocks,
)
from memleak_android.unwind.file_reading import open_regular
from memleak_android.unwind.file_writing import create, replacing

FILE_MAGIC = b"MEMLEAK\0"
_FILE_HEADER = struct.Struct("<8sII")  # magic, version, reserved
FILE_HEADER = _FILE_HEADER.pack(FILE_MAGIC, WIRE_VERSION, 0)


class RecordingWriter:
    """Appends blocks to a new file of mode 0600. A full disk ends the writing, not the session (`failure`)."""

    def __init__(self, path: Path, force: bool = False) -> None:
        self.path = path
        self.failure: OSError | None = None
        self.size = 0  # bytes of whole blocks and the header
        try:
            self._fd = create(path, force, 0o600)
        except FileExistsError:
            raise OutputExistsError(path) from None
        except OSError as error:
            raise RecordingError(
                f"cannot write {path}: {error.strerror}", "choose another path with -o"
            ) from None
        self._append(FILE_HEADER)

    def write(self, block: Block) -> int:
        """Returns the offset at which the block begins in the file; -1 if it could not be written."""
        offset = self.size
        return offset if self._append(encode_block(block)) else -1

    def _append(self, data: bytes) -> bool:
        if self.failure is not None:
            return False
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.failure = error
            self._drop_partial_block()
            return False
        self.size += len(data)
        return True

    def _drop_partial_block(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
        except OSError:
            pass  # the reader stops at the last whole block anyway

    @property
    def is_empty(self) -> bool:
        """Only the header is written."""
        return self.size <= len(FILE_HEADER)

    def read_block(self, offset: int) -> Block:
        return read_block_at(self._fd, offset)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_block_at(fd: int, offset: int) -> Block:
    """The block that begins at `offset`; raises BrokenStream if the file has become shorter."""
    parser = BlockParser(offset)
    header = os.pread(fd, BLOCK.itemsize, offset)
    for block in parser.feed(header):
        return block  # an empty payload
    payload_bytes = struct.unpack_from("<I", header, 8)[0] if len(header) == BLOCK.itemsize else 0
    for block in parser.feed(os.pread(fd, payload_bytes, offset + BLOCK.itemsize)):
        return block
    raise BrokenStream(offset, "the file has become shorter")


class Recording:
    """A recording opened for reading.

    Raises RecordingError if nothing in it can be read: another format or version, no whole block.
    broken: where and why blocks() stopped before the file's end; None = it did not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken: BrokenStream | None = None
        try:
            self._stream = os.fdopen(open_regular(path), "rb", buffering=0)
            header = self._stream.read(_FILE_HEADER.size) or b""
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {error.strerror}", "name a .memleak file") from None
        check_file_header(path, header)

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """Every whole block with the offset at which it begins."""
        offset = self._stream.seek(_FILE_HEADER.size)
        try:
            for block in read_blocks(self._stream, offset):
                yield offset, block
                offset += BLOCK.itemsize + len(block.payload)
        except BrokenStream as error:
            self.broken = error
        if offset == _FILE_HEADER.size:
            reason = self.broken.reason if self.broken else "it ends after its header"
            raise RecordingError(f"{self.path} holds no readable block: {reason}", "record again")

    def read_block(self, offset: int) -> Block:
        return read_block_at(self._stream.fileno(), offset)

    def close(self) -> None:
        self._stream.close()


def check_file_header(path: Path, header: bytes) -> None:
    """Raises RecordingError."""
    header = header[: _FILE_HEADER.size]
    if len(header) < _FILE_HEADER.size or not header.startswith(FILE_MAGIC):
        reason = "empty" if not header else "not a memleak recording"
        raise RecordingError(f"{path} is {reason}", "name a file that `memleak-android record` wrote")
    version = _FILE_HEADER.unpack(header)[1]
    if version != WIRE_VERSION:
        raise RecordingError(
            f"{path} is a recording of version {version}, this program reads version {WIRE_VERSION}",
            "use the memleak-android that recorded it",
        )


def write_finished(path: Path, blocks: Iterable[Block]) -> None:
    """Writes the finished recording and renames it to `path` in one step; on failure `path` stays as it was.

    Raises OSError.
    """
    with replacing(path, 0o600) as file:
        file.write(FILE_HEADER)
        for block in blocks:
            file.write(encode_block(block))
        file.flush()
        with suppress(OSError):  # a pipe or device has nothing to write back
            os.fsync(file.fileno())
