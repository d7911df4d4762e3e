"""Programs on a device over adb's shell protocol: one that we read, with its exit status, and one that uses our streams."""

import contextlib
import os
import select
import socket
import struct
import threading
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


_INPUT_BYTES = 1 << 15
_UNSENT_BYTES_MAX = 1 << 18  # a program that does not read must not fill our memory
_POLL_MS = 100
_SILENCE_S, _DRAINED_S = 1.0, 10.0
_JOINED_S = 5.0
_OUTPUTS = {STDOUT: 1, STDERR: 2}


class RelayedStreams:
    """Implements Relay in a thread of its own, over a connection of adb's shell protocol.

    It ends with close() or with the program. Input is read at once, whether the program reads it or not, as adb does.
    """

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._parser = PacketParser()
        self._unsent = bytearray()
        self._takes_input = True
        self._is_closing = False
        self._has_ended = threading.Event()
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="streams of the command", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Returns when all output has arrived: the last program that holds the streams ended, or is silent.

        A background program may print without end, so this waits for some seconds at most.
        """
        deadline = time.monotonic() + _DRAINED_S
        while not self._has_ended.wait(0.02):
            now = time.monotonic()
            if now - self._heard > _SILENCE_S or now > deadline:
                return

    def close(self) -> None:
        """Closes the streams. A program that still uses them gets errors."""
        self._is_closing = True
        self._thread.join(_JOINED_S)

    def _run(self) -> None:
        try:
            # a lost connection is reported by the session's own
            with self._stream, contextlib.suppress(OSError):
                while not self._is_closing and self._move():
                    pass
        finally:
            self._has_ended.set()

    def _move(self) -> bool:
        """Moves available data in both directions. False at the end."""
        poll = select.poll()  # select() fails for descriptors above 1023
        poll.register(self._stream, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        wants_input = self._takes_input and len(self._unsent) < _UNSENT_BYTES_MAX and _is_ours(0)
        if wants_input:
            poll.register(0, select.POLLIN)
        ready = dict(poll.poll(_POLL_MS))
        if ready.get(0, 0) and wants_input:
            self._take_input()
        if self._unsent:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self._stream.send(self._unsent)]
        return not ready.get(self._stream.fileno(), 0) & ~select.POLLOUT or self._take_output()

    def _take_input(self) -> None:
        data = os.read(0, _INPUT_BYTES) if _is_open(0) else b""
        self._unsent += packet(STDIN, data) if data else packet(CLOSE_STDIN)
        self._takes_input = bool(data)

    def _take_output(self) -> bool:
        try:
            data = self._stream.recv(_INPUT_BYTES)
        except BlockingIOError:
            return True
        self._heard = time.monotonic()
        for identity, piece in self._parser.feed(data):
            if identity == EXIT:
                return False
            if identity in _OUTPUTS:
                _write(_OUTPUTS[identity], piece)
        return bool(data)


def _write(fd: int, data: bytes) -> None:
    """Raises OSError if the reader of our stream is gone: the program's stream then breaks too, as it would here."""
    while data:
        data = data[os.write(fd, data) :]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _is_ours(fd: int) -> bool:
    """Whether we may read the terminal: it stops background programs that do."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # not a terminal
