"""What a session and the process that draws it tell each other: msgpack, each message behind its length.

The drawing process is a peer, not a stranger: both ends are of one version. Names inside are those of the target, cut to
bounded lengths and printable.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec

_LENGTH = struct.Struct("<I")
MESSAGE_BYTES_MAX = 64 << 20


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first message. output: the file that gets what the command writes, "" where there is no command of ours."""

    target: str
    output: str = ""
    can_look: bool = False  # reachability can be asked for


class Head(msgspec.Struct, tag=True, frozen=True):
    """Counters, a few times a second. None = not known."""

    tracer: str
    elapsed_s: float
    space: int
    objects: int
    allocations: int
    allocations_per_s: float
    lost: int
    resident_bytes: int | None = None


class FrameLine(msgspec.Struct, array_like=True, frozen=True):
    """One function of a stack. source: `file:line`, `file` or "". way: how the unwinder came here."""

    function: str
    source: str
    module: str
    way: str


class SiteLine(msgspec.Struct, array_like=True, frozen=True):
    """What one stack holds. frames: numbers in Sites.frames, innermost first; own: the place among them of the function
    that is responsible, -1 where there is none.

    rate: growth in bytes per minute (of a scenario per run), 0 where it does not grow; growth: the same, or what it does instead, in words.
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
    end: str  # "" = the stack is whole, else why it is not
    frames: tuple[int, ...]
    own: int


class Sites(msgspec.Struct, tag=True, frozen=True):
    """One snapshot. space, objects: of all; stacks: how many hold something. sites: the largest and fastest of them."""

    elapsed_s: float
    space: int
    objects: int
    stacks: int
    unattributed_space: int
    growth: str  # the answer for the session, "" where there is none yet
    sites: tuple[SiteLine, ...]
    frames: tuple[FrameLine, ...]


class Notice(msgspec.Struct, tag=True, frozen=True):
    """One line for the user."""

    text: str
    is_problem: bool = False


class Close(msgspec.Struct, tag=True, frozen=True):
    """The session is over."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End the session, or where it is ending already, abort it."""


class Mark(msgspec.Struct, tag=True, frozen=True):
    name: str


class Save(msgspec.Struct, tag=True, frozen=True):
    """Write a report now."""


class Look(msgspec.Struct, tag=True, frozen=True):
    """Say which blocks nothing refers to."""


Told = Begin | Head | Sites | Notice | Close
Asked = Stop | Mark | Save | Look
_TOLD, _ASKED = msgspec.msgpack.Decoder(Told), msgspec.msgpack.Decoder(Asked)


def encode(message: Told | Asked) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def told(stream: socket.socket) -> Iterator[Told]:
    """What the session says, until it ends; blocks. Raises OSError, msgspec.DecodeError."""
    return map(_TOLD.decode, _payloads(stream))


def asked(stream: socket.socket) -> Iterator[Asked]:
    """What the user wants, likewise."""
    return map(_ASKED.decode, _payloads(stream))


def _payloads(stream: socket.socket) -> Iterator[bytes]:
    while len(head := _exactly(stream, _LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        if length > MESSAGE_BYTES_MAX or len(payload := _exactly(stream, length)) < length:
            return
        yield payload


def _exactly(stream: socket.socket, length: int) -> bytes:
    """Fewer at the stream's end."""
    data = bytearray()
    while len(data) < length and (piece := stream.recv(min(length - len(data), 1 << 20))):
        data += piece
    return bytes(data)
