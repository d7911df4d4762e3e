"""A program on a device that uses our standard streams: its output is printed here, our input goes to it."""

import contextlib
import os
import select
import socket
import threading
import time

from memleak_android.host.machine.adb.channel import (
    CLOSE_STDIN,
    EXIT,
    STDERR,
    STDIN,
    STDOUT,
    PacketParser,
    packet,
)

_PIECE_BYTES = 1 << 15
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
        data = os.read(0, _PIECE_BYTES) if _is_open(0) else b""
        self._unsent += packet(STDIN, data) if data else packet(CLOSE_STDIN)
        self._takes_input = bool(data)

    def _take_output(self) -> bool:
        try:
            data = self._stream.recv(_PIECE_BYTES)
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
