"""Messages between a session and the process that draws it: msgpack, each with its length in front.

Both ends are of one version. Names are the target's, printable and of bounded length.
"""

import socket
import struct
from collections.abc import Iterator

import msgspec

from memleak_android.host.profile.field_types import BYTE

_LENGTH = struct.Struct("<I")
MESSAGE_BYTES_MAX = 64 << 20


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first message. output: the file with the output of our command, "" without one."""

    target: str
    output: str = ""
    can_scan: bool = False  # reachability is possible


class Head(msgspec.Struct, tag=True, frozen=True):
    """Counters, a few times a second. None = not known. lost_most: the cause of most losses."""

    tracer: str
    elapsed_s: float
    space: int
    objects: int
    allocations: int
    allocations_per_s: float
    lost: int
    resident_bytes: int | None = None
    unit: str = BYTE
    lost_most: str = ""


class FrameLine(msgspec.Struct, array_like=True, frozen=True):
    """One function of a stack. source: `file:line`, `file` or "". way: how the unwinder reached the frame."""

    function: str
    source: str
    module: str
    way: str


class SiteLine(msgspec.Struct, array_like=True, frozen=True):
    """Memory held by one stack. frames: numbers in Sites.frames, innermost first; own: index of the responsible frame,
    -1 if none.

    rate: growth in bytes per minute (of a scenario per run), 0 without growth. growth: the trend in words.
    """

    id: str
    space: int
    objects: int
    stderr_space: int | None
    rate: float
    growth: str
    oldest_s: float
    verdict: str
    kind: str
    about: str  # for the stack's own screen
    end: str  # why the stack is truncated, "" = it is complete
    frames: tuple[int, ...]
    own: int


class Sites(msgspec.Struct, tag=True, frozen=True):
    """One snapshot. space, objects: of all sites. stacks: number of stacks that hold blocks. sites: the largest and fastest.

    answer: the report's first line as far as is known; style: rich's, for it.
    """

    elapsed_s: float
    space: int
    objects: int
    stacks: int
    unattributed_space: int
    answer: str
    style: str
    sites: tuple[SiteLine, ...]
    frames: tuple[FrameLine, ...]
    unit: str = BYTE


class Notice(msgspec.Struct, tag=True, frozen=True):
    """One line for the user."""

    text: str
    is_problem: bool = False


class Close(msgspec.Struct, tag=True, frozen=True):
    """The session is over."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End the session; abort it if it is ending already."""


class Mark(msgspec.Struct, tag=True, frozen=True):
    name: str


class Save(msgspec.Struct, tag=True, frozen=True):
    """Write a report now."""


class Scan(msgspec.Struct, tag=True, frozen=True):
    """Find unreachable blocks."""


SessionMessage = Begin | Head | Sites | Notice | Close
ViewRequest = Stop | Mark | Save | Scan
_MESSAGES, _REQUESTS = msgspec.msgpack.Decoder(SessionMessage), msgspec.msgpack.Decoder(ViewRequest)


def encode(message: SessionMessage | ViewRequest) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def session_messages(stream: socket.socket) -> Iterator[SessionMessage]:
    """Messages of the session until it ends; blocks. Raises OSError, msgspec.DecodeError."""
    return map(_MESSAGES.decode, _payloads(stream))


def view_requests(stream: socket.socket) -> Iterator[ViewRequest]:
    """Requests of the user, likewise."""
    return map(_REQUESTS.decode, _payloads(stream))


def _payloads(stream: socket.socket) -> Iterator[bytes]:
    while len(head := _exactly(stream, _LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        if length > MESSAGE_BYTES_MAX or len(payload := _exactly(stream, length)) < length:
            return
        yield payload


def _exactly(stream: socket.socket, length: int) -> bytes:
    """Fewer bytes at the end of the stream."""
    data = bytearray()
    while len(data) < length and (piece := stream.recv(min(length - len(data), 1 << 20))):
        data += piece
    return bytes(data)
