"""Reads an agent's output in a thread of its own, so that a busy session does not stall the agent."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue

from memleak_android.host.errors import MemleakError
from memleak_android.host.machine.target import Channel

READ_AHEAD_BYTES = 256 << 20  # evidence of a few hundred thousand stacks: unwinding for some seconds
_POLL_S = 0.1
_FULL_S = 0.01  # between two looks whether there is room again
# well below the silence after which an agent ends (docs/wire-protocol.md, host_silence_s)
_ALIVE_INTERVAL_S = 15.0


class AgentSilent(Exception):
    """No output while this program waited for patience_s."""


class ChannelReader:
    """Owns `channel` from the first pieces() to close(); no other thread uses it in between.

    limit_bytes: reading pauses while this much (and a piece of at most 1 MiB) is unconsumed. The agent then waits, and counts
    what its buffers cannot hold as lost.
    outgoing: data sent first.
    patience_s: allowed silence of the agent; may be changed meanwhile.
    held_up_s: total time of such pauses.
    There are no locks: a signal handler may call say(), and an exception may leave pieces().
    """

    def __init__(
        self, channel: Channel, outgoing: bytes, patience_s: float, limit_bytes: int = READ_AHEAD_BYTES
    ) -> None:
        self.patience_s = patience_s
        self.held_up_s = 0.0
        self._channel = channel
        self._outgoing = bytearray(outgoing)
        self._limit_bytes = limit_bytes
        self._wanted: deque[bytes] = deque()
        self._read: SimpleQueue[bytes | None] = SimpleQueue()  # None: the end
        self._n_read = self._n_taken = 0  # bytes; written by the thread and by pieces(), respectively
        self._failure: Exception | None = None
        self._is_over = False
        self._said_alive = time.monotonic()
        self._thread: threading.Thread | None = None
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def say(self, line: bytes) -> None:
        """Queues data for the agent."""
        self._wanted.append(line)
        self._wake_up()

    def pieces(self) -> Iterator[bytes]:
        """Output in order, until the agent closes it. Raises AgentSilent, or an error of the channel, after the last piece."""
        self._thread = threading.Thread(target=self._run, name="agent-output", daemon=True)
        self._thread.start()
        while (piece := self._read.get()) is not None:
            self._n_taken += len(piece)
            yield piece
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Returns the channel to the caller."""
        self._is_over = True
        self._wake_up()
        if self._thread is not None:
            self._thread.join()
        ends, self._woken, self._wake = (self._woken, self._wake), -1, -1
        for end in ends:
            if end >= 0:
                os.close(end)

    def _wake_up(self) -> None:
        if self._wake >= 0:
            with suppress(BlockingIOError):  # full: it will wake up
                os.write(self._wake, b"\0")

    def _run(self) -> None:
        try:
            self._read_all()
        except (
            AgentSilent,
            MemleakError,
            OSError,
            ValueError,
        ) as failure:  # raised after the output that came before
            self._failure = failure
        finally:
            self._read.put(None)

    def _read_all(self) -> None:
        silence_s = 0.0
        while not self._is_over:
            while self._wanted:
                self._outgoing += self._wanted.popleft()
            if self._is_alive_due:
                self._said_alive = time.monotonic()
                self._outgoing += b"alive\n"
            begin = time.monotonic()
            piece = self._channel.exchange(self._outgoing, _POLL_S, self._woken)
            with suppress(BlockingIOError):
                os.read(self._woken, 64)
            if piece is None:
                return
            if piece:
                self._n_read += len(piece)
                self._read.put(piece)
                self._await_room()
                silence_s = 0.0
                continue
            # A machine that stood still (a paused guest), or had no time for us, had none for the agent.
            silence_s += min(time.monotonic() - begin, 2 * _POLL_S)
            if silence_s > self.patience_s:
                raise AgentSilent

    def _await_room(self) -> None:
        """Waits until some output is consumed or there is data to send, which takes reading another piece."""
        begin = time.monotonic()
        while self._n_read - self._n_taken > self._limit_bytes and not self._is_over:
            if self._wanted or self._is_alive_due:
                break
            time.sleep(_FULL_S)
            self.held_up_s += time.monotonic() - begin
            begin = time.monotonic()

    @property
    def _is_alive_due(self) -> bool:
        """An agent that lost its network must not keep tracing."""
        return self._channel.is_remote and time.monotonic() - self._said_alive > _ALIVE_INTERVAL_S
