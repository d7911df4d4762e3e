"""A program on a device: its streams and its exit status over one connection of adb's shell protocol."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from memleak_android.host.errors import ConnectionCut
from memleak_android.host.machine.adb.shell_protocol import (
    CLOSE_STDIN,
    EXIT,
    STDERR,
    STDOUT,
    PacketParser,
    packet,
    take_stdin,
)
from memleak_android.host.machine.parse import last_line

_PIECE_BYTES = 1 << 20
_STDERR_BYTES_KEPT = 16 << 10
_SIGNALLED = 128  # adbd gives 0x80 | the signal's number


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
