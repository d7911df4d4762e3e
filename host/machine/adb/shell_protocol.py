"""The packets of adb's shell protocol v2: several streams and an exit status in one connection.

A packet is an 8-bit id, a 32-bit little-endian length and its data (AOSP packages/modules/adb, shell_protocol.h).
An exit packet comes last if the program ended; without it the connection was lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<BI")
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
_STDIN_BYTES = (
    1 << 15
)  # adbd reads packets into a buffer of its connection's payload size, 256 KiB at the least


class PacketParser:
    """Splits a stream into (id, bytes). A long packet is passed on in pieces as they arrive and never buffered."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._id = -1
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Pieces of packets of any claimed length; an empty packet gives one empty piece."""
        at = 0
        while at < len(data):
            if self._id < 0:
                wanted = _HEADER.size - len(self._header)
                self._header += data[at : at + wanted]
                at += wanted
                if len(self._header) < _HEADER.size:
                    return
                self._id, self._left = _HEADER.unpack(self._header)
                self._header.clear()
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            identity = self._id
            if not self._left:
                self._id = -1
            if piece or not self._left:
                yield identity, piece


def packet(identity: int, data: bytes = b"") -> bytes:
    return _HEADER.pack(identity, len(data)) + data


def take_stdin(outgoing: bytearray) -> bytes:
    """A packet of the first bytes of `outgoing`, which are removed; b"" if there are none."""
    if not outgoing:
        return b""
    data = bytes(outgoing[:_STDIN_BYTES])
    del outgoing[: len(data)]
    return packet(STDIN, data)
