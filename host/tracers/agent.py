"""A session of memleakd: started, told what to do by lines, read as blocks, ended whatever state it is in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memleak_android.host.device.target import Channel
from memleak_android.host.errors import TracerError
from memleak_android.host.payloads import decode_hello
from memleak_android.host.wire import WIRE_VERSION, Block, BlockKind, BlockParser, BrokenStream

_POLL_S = 0.1
_CLOSE_S, _KILLED_S = 3.0, 60.0  # taking many probes away takes its time
_ABANDON_S = 0.5
_ALIVE_INTERVAL_S = 15.0  # longer than a report between two blocks takes, many times in _HOST_SILENCE_S
_HOST_SILENCE_S = 120


class AgentDied(TracerError):
    """The agent ended without an END block. What arrived before is good."""


class AgentSession:
    """Implements Tracer over a channel to a running agent.

    stop() and request_snapshot() may be called from a signal handler. silence_s: the agent writes a STATUS block
    four times a second; after that long without a byte it is taken for dead. put_away: called once the agent has
    ended, for what was brought to the target for it.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        lines: Sequence[str],
        *,
        silence_s: float = 60,
        put_away: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.target: dict[
            str, Any
        ] = {}  # fields of SESSION that only the device could tell; more may come later
        self.about: dict[str, Any] = {}  # what the recording should keep about this tracer
        self.notes: tuple[str, ...] = ()  # for -v
        self.fallback = ""  # why a better tracer is not used
        self._channel = channel
        self._silence_s = silence_s
        self._put_away = put_away
        self._wanted: deque[bytes] = deque()
        self._said_alive = time.monotonic()
        promise = [f"host_silence_s {_HOST_SILENCE_S}"] if channel.is_remote else []
        self._outgoing = bytearray("".join(f"{line}\n" for line in [*lines, *promise, "start"]).encode())

    def request_snapshot(self) -> None:
        self._wanted.append(b"snapshot\n")

    def stop(self) -> None:
        self._wanted.append(b"stop\n")

    def blocks(self) -> Iterator[Block]:
        """Raises TracerError where there never was a session, AgentDied where it broke off."""
        parser, is_first = BlockParser(), True
        try:
            for piece in self._pieces():
                for block in parser.feed(piece):
                    if is_first:
                        _check_hello(block)
                        is_first = False
                    yield block
                    if block.kind == BlockKind.END:
                        return
            parser.finish()
        except BrokenStream as error:
            if is_first and error.version is not None:
                raise _wrong_version(error.version) from None
            raise AgentDied(f"the agent wrote something unreadable ({error.reason})", self._hint()) from None
        if is_first:
            raise TracerError(f"the agent did not start: {self._channel.end_text()}", self._hint())
        raise AgentDied(f"the agent died: {self._channel.end_text()}", self._hint())

    def close(self) -> None:
        self._end(_CLOSE_S, _KILLED_S)

    def abandon(self) -> None:
        self._end(_ABANDON_S, 0.0)

    def _end(self, patience_s: float, killed_s: float) -> None:
        put_away, self._put_away = self._put_away, lambda: None
        try:
            self._channel.close(patience_s, killed_s)
        finally:
            put_away()

    def _pieces(self) -> Iterator[bytes]:
        """What the agent writes, until it closes its output."""
        heard = time.monotonic()
        while True:
            while self._wanted:
                self._outgoing += self._wanted.popleft()
            self._say_alive()
            piece = self._channel.exchange(self._outgoing, _POLL_S)
            if piece is None:
                return
            if piece:
                yield piece
                heard = time.monotonic()
            elif time.monotonic() - heard > self._silence_s:
                raise AgentDied(f"the agent did not answer for {self._silence_s:g} s", self._hint())

    def _say_alive(self) -> None:
        """An agent behind a network that is gone must not trace for nobody (docs/wire-protocol.md, host_silence_s)."""
        now = time.monotonic()
        if self._channel.is_remote and now - self._said_alive > _ALIVE_INTERVAL_S:
            self._said_alive = now
            self._outgoing += b"alive\n"

    def _hint(self) -> str:
        words = self._channel.last_words()
        return f"it said: {words}" if words else "run `memleak-android doctor`"


def _check_hello(block: Block) -> None:
    if block.kind != BlockKind.HELLO:
        raise TracerError("the agent did not introduce itself", "build it with `make device`")
    version = int(decode_hello(block.payload)["wire_version"])
    if version != WIRE_VERSION:
        raise _wrong_version(version)


def _wrong_version(version: int) -> TracerError:
    return TracerError(
        f"the agent speaks wire version {version}, this program {WIRE_VERSION}",
        "build both with `make device`",
    )
