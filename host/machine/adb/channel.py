"""A program on a device: its streams and its exit status over one connection of adb's shell protocol."""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator

from memleak_android.host.errors import ConnectionCut
from memleak_android.host.machine.parse import last_line

_PIECE_BYTES = 1 << 20
_STDERR_BYTES_KEPT = 16 << 10
_SIGNALLED = 128  # adbd gives 0x80 | the signal's number
# A packet is an 8-bit id, a 32-bit little-endian length and its data (AOSP packages/modules/adb, shell_protocol.h). An exit
# packet comes last if the program ended; without it the connection was lost.
_HEADER = struct.Struct("<BI")
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
_STDIN_BYTES = 1 << 15  # adbd's buffer for packets has its connection's payload size, 256 KiB at the least


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


class AdbChannel:
    """Implements Channel. name: of the device, for messages."""

    is_remote = True

    def __init__(self, stream: socket.socket, name: str) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._name = name
        self._parser = PacketParser()
        self._unsent = bytearray()  # whole packets, the first perhaps sent in part
        self._stderr = bytearray()
        self.exit_code: int | None = None

    def exchange(self, outgoing: bytearray, timeout_s: float, wake: int = -1) -> bytes | None:
        if self.exit_code is not None:
            return None
        self._send(outgoing)
        poll = select.poll()  # select() fails for descriptors above 1023
        poll.register(self._stream, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if wake >= 0:
            poll.register(wake, select.POLLIN)
        events = dict(poll.poll(timeout_s * 1000)).get(self._stream.fileno(), 0)
        if events & select.POLLOUT:
            self._send(outgoing)
        return self._receive() if events & ~select.POLLOUT else b""

    def close_input(self) -> None:
        """Ends the program's stdin after what was sent."""
        self._unsent += packet(CLOSE_STDIN)

    @property
    def stderr(self) -> bytes:
        """The last part of the program's stderr."""
        return bytes(self._stderr)

    def last_words(self) -> str:
        return last_line(self._stderr)

    def end_text(self) -> str:
        code = self.exit_code
        if code is None:
            return "its output ended"
        return f"exit code {code}" if code < _SIGNALLED else f"exit code {code} (signal {code - _SIGNALLED})"

    def close(self, patience_s: float, killed_s: float) -> None:
        """Closes the program's input, then the connection. adbd then sends SIGHUP and closes the program's pipes."""
        if self._stream.fileno() < 0:
            return
        with contextlib.suppress(ConnectionCut):
            self.close_input()
            deadline = time.monotonic() + patience_s
            while self.exit_code is None and time.monotonic() < deadline:
                self.exchange(bytearray(), min(patience_s, 0.1))
        self._stream.close()

    def _send(self, outgoing: bytearray) -> None:
        """Sends `outgoing`; close_input() comes after its last packet."""
        while self._unsent or outgoing:
            if not self._unsent:
                self._unsent += take_stdin(outgoing)
            try:
                sent = self._stream.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # what can still be read has the reason
                self._unsent.clear()
                outgoing.clear()
                return
            del self._unsent[:sent]

    def _receive(self) -> bytes | None:
        try:
            data = self._stream.recv(_PIECE_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            raise ConnectionCut(f"the connection to {self._name} was cut", "connect it again")
        out = []
        for identity, piece in self._parser.feed(data):
            if identity == STDOUT:
                out.append(piece)
            elif identity == STDERR:
                self._stderr += piece
                del self._stderr[:-_STDERR_BYTES_KEPT]
            elif identity == EXIT and piece:
                self.exit_code = piece[0]
        if not out and self.exit_code is not None:
            return None
        return out[0] if len(out) == 1 else b"".join(out)
