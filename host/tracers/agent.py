"""A session of memleakd: started, told what to do by lines, read as blocks, ended whatever state it is in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from memleak_android.host.errors import TracerError
from memleak_android.host.payloads import decode_hello
from memleak_android.host.wire import WIRE_VERSION, Block, BlockKind, BlockParser, BrokenStream

_PIECE_BYTES = 1 << 20
_STDERR_BYTES_KEPT = 16 << 10
_POLL_S = 0.1
_CLOSE_S, _KILLED_S = 3.0, 60.0  # taking many probes away takes its time
_ABANDON_S = 0.5
_FIRST_FREE_FD = 10  # 0–5 are taken in the agent: its own, and the user's terminal for the target
USER_STDIO_LINE = "stdio 3 4 5"


class AgentDied(TracerError):
    """The agent ended without an END block. What arrived before is good."""


class AgentSession:
    """Implements Tracer. A selector loop in blocks() moves all three pipes, so that none can fill up unread.

    stop() and request_snapshot() may be called from a signal handler. silence_s: the agent writes a STATUS block
    four times a second; after that long without a byte it is taken for dead.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        lines: Sequence[str],
        *,
        give_stdio: bool = False,
        silence_s: float = 60,
    ) -> None:
        self.name = name
        self.about: dict[str, Any] = {}  # what the recording should keep about this tracer
        self.notes: tuple[str, ...] = ()  # for -v
        self.fallback = ""  # why a better tracer is not used
        self._silence_s = silence_s
        self._wanted: deque[bytes] = deque()
        config = [*lines, *([USER_STDIO_LINE] if give_stdio else []), "start"]
        self._outgoing = bytearray("".join(f"{line}\n" for line in config).encode())
        self._stderr = bytearray()
        self._wait_status: int | None = None
        self._is_ended = False
        self._pid, self._stdin, self._stdout, self._stderr_fd = _spawn(argv, give_stdio)

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
            raise AgentDied(
                f"the agent wrote something unreadable ({error.reason})", self._last_words()
            ) from None
        if is_first:
            raise TracerError(f"the agent did not start: {self._exit_text()}", self._last_words())
        raise AgentDied(f"the agent died: {self._exit_text()}", self._last_words())

    def close(self) -> None:
        self._end(_CLOSE_S, _KILLED_S)

    def abandon(self) -> None:
        self._end(_ABANDON_S, 0.0)

    def _end(self, patience_s: float, killed_s: float) -> None:
        """By closing its input, by SIGTERM, by SIGKILL; only once."""
        if self._is_ended:
            return
        self._is_ended = True
        for name in ("_stdin", "_stdout", "_stderr_fd"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)
        for following in (signal.SIGTERM, signal.SIGKILL):
            if self._wait(patience_s):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, following)
        self._wait(killed_s)

    def _pieces(self) -> Iterator[bytes]:
        """What the agent writes, until it closes its output."""
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr_fd, selectors.EVENT_READ)
            while True:
                self._flush()
                ready = {key.fd for key, _ in selector.select(_POLL_S)}
                if self._stderr_fd in ready and not self._read_stderr():
                    selector.unregister(self._stderr_fd)
                if self._stdout in ready:
                    piece = os.read(self._stdout, _PIECE_BYTES)
                    if not piece:
                        return
                    yield piece
                    heard = time.monotonic()
                elif time.monotonic() - heard > self._silence_s:
                    raise AgentDied(f"the agent did not answer for {self._silence_s:g} s", self._last_words())

    def _flush(self) -> None:
        while self._wanted:
            self._outgoing += self._wanted.popleft()
        while self._outgoing and self._stdin >= 0:
            try:
                written = os.write(self._stdin, self._outgoing[: 1 << 16])
            except BlockingIOError:
                return
            except BrokenPipeError:  # it is ending: its output says why
                self._outgoing.clear()
                return
            del self._outgoing[:written]

    def _read_stderr(self) -> bool:
        data = os.read(self._stderr_fd, 1 << 16)
        self._stderr += data
        del self._stderr[:-_STDERR_BYTES_KEPT]
        return bool(data)

    def _wait(self, timeout_s: float) -> bool:
        """True when the agent has ended within the time."""
        deadline = time.monotonic() + timeout_s
        while self._wait_status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._wait_status = status
            elif time.monotonic() > deadline:
                return False
            else:
                time.sleep(0.01)
        return True

    def _exit_text(self) -> str:
        if not self._wait(_CLOSE_S) or self._wait_status is None:
            return "its output ended"
        code = os.waitstatus_to_exitcode(self._wait_status)
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def _last_words(self) -> str:
        os.set_blocking(self._stderr_fd, False)
        with contextlib.suppress(BlockingIOError):
            while self._read_stderr():
                pass
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return f"it said: {lines[-1]}" if lines else "run `memleak-android doctor`"


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


def _spawn(argv: Sequence[str], give_stdio: bool) -> tuple[int, int, int, int]:
    """Process id and our ends of its stdin, stdout and stderr."""
    pipes = [_high_pipe() for _ in range(3)]
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = pipes
    users = [(os.POSIX_SPAWN_DUP2, _open_or_null(fd), fd + 3) for fd in range(3)] if give_stdio else []
    own = [(os.POSIX_SPAWN_DUP2, end, fd) for fd, end in enumerate((in_read, out_write, err_write))]
    try:
        pid = os.posix_spawn(argv[0], list(argv), os.environ, file_actions=[*users, *own])
    except OSError as error:
        for fd in (in_write, out_read, err_read):
            os.close(fd)
        raise TracerError(
            f"could not start {argv[0]}: {error.strerror}", "build it with `make device`"
        ) from None
    finally:
        for fd in (in_read, out_write, err_write):
            os.close(fd)
    os.set_blocking(in_write, False)
    return pid, in_write, out_read, err_read


def _high_pipe() -> tuple[int, int]:
    low = os.pipe()
    try:
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in low)
    finally:
        for fd in low:
            os.close(fd)
    return read, write


def _open_or_null(fd: int) -> int:
    """`fd`, or where the user has closed it a descriptor of /dev/null."""
    try:
        os.fstat(fd)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        high = fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
        os.close(null)
        return high
    return fd
