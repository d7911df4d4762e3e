"""An agent on this machine: three pipes and a child process."""

import contextlib
import fcntl
import os
import selectors
import signal
import time
from collections.abc import Sequence

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.parse import last_line

_PIECE_BYTES = 1 << 20
_STDERR_BYTES_KEPT = 16 << 10
_STATUS_WAIT_S = 3.0
_FIRST_FREE_FD = 10  # 0–5 are taken in the agent: its own, and the user's terminal for the target
_IGNORED_BY_PYTHON = signal.SIGPIPE, signal.SIGXFSZ  # in itself; a command would inherit that
USER_STDIO_LINE = "stdio 3 4 5"  # the configuration line for an agent with give_stdio


class LocalChannel:
    """Implements Channel. All three pipes are served together, so that none can fill up unread.

    give_stdio: the agent also inherits our own standard streams, as descriptors 3, 4 and 5.
    """

    is_remote = False

    def __init__(self, argv: Sequence[str], *, give_stdio: bool = False) -> None:
        self._stderr = bytearray()
        self._wait_status: int | None = None
        self._is_ended = False
        self.pid, self._stdin, self._stdout, self._stderr_fd = _spawn(argv, give_stdio)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr_fd, selectors.EVENT_READ)

    def exchange(self, outgoing: bytearray, timeout_s: float, wake: int = -1) -> bytes | None:
        self._send(outgoing)
        if wake >= 0 and wake not in self._selector.get_map():
            self._selector.register(wake, selectors.EVENT_READ)
        ready = {key.fd for key, _ in self._selector.select(timeout_s)}
        if self._stderr_fd in ready and not self._read_stderr():
            self._selector.unregister(self._stderr_fd)
        if self._stdout not in ready:
            return b""
        return os.read(self._stdout, _PIECE_BYTES) or None

    def last_words(self) -> str:
        if self._stderr_fd >= 0:
            os.set_blocking(self._stderr_fd, False)
            with contextlib.suppress(BlockingIOError):
                while self._read_stderr():
                    pass
        return last_line(self._stderr)

    def end_text(self) -> str:
        if not self.wait(_STATUS_WAIT_S) or self._wait_status is None:
            return "its output ended"
        code = os.waitstatus_to_exitcode(self._wait_status)
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def close(self, patience_s: float, killed_s: float) -> None:
        """Closes the agent's input, then sends SIGTERM, then SIGKILL. Works once."""
        if self._is_ended:
            return
        self._is_ended = True
        self._selector.close()
        for name in ("_stdin", "_stdout", "_stderr_fd"):
            os.close(getattr(self, name))
            setattr(self, name, -1)
        for following in (signal.SIGTERM, signal.SIGKILL):
            if self.wait(patience_s):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, following)
        self.wait(killed_s)

    def wait(self, timeout_s: float) -> bool:
        """Whether the agent ended within the time."""
        deadline = time.monotonic() + timeout_s
        while self._wait_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._wait_status = status
            elif time.monotonic() > deadline:
                return False
            else:
                time.sleep(0.01)
        return True

    def _send(self, outgoing: bytearray) -> None:
        while outgoing:
            try:
                written = os.write(self._stdin, outgoing[: 1 << 16])
            except BlockingIOError:
                return
            except BrokenPipeError:  # it is ending, and its output has the reason
                outgoing.clear()
                return
            del outgoing[:written]

    def _read_stderr(self) -> bool:
        data = os.read(self._stderr_fd, 1 << 16)
        self._stderr += data
        del self._stderr[:-_STDERR_BYTES_KEPT]
        return bool(data)


def _spawn(argv: Sequence[str], give_stdio: bool) -> tuple[int, int, int, int]:
    """Process id and our ends of its stdin, stdout and stderr."""
    pipes = [_high_pipe() for _ in range(3)]
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = pipes
    users = [(os.POSIX_SPAWN_DUP2, _open_or_null(fd), fd + 3) for fd in range(3)] if give_stdio else []
    own = [(os.POSIX_SPAWN_DUP2, end, fd) for fd, end in enumerate((in_read, out_write, err_write))]
    try:
        pid = os.posix_spawn(
            argv[0], list(argv), os.environ, file_actions=[*users, *own], setsigdef=_IGNORED_BY_PYTHON
        )
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
    """`fd`, or a descriptor of /dev/null if the user has closed it."""
    try:
        os.fstat(fd)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        high = fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
        os.close(null)
        return high
    return fd
