"""The terminal of `--live`: a child process draws on it, our output and the command's are redirected."""

import io
import os
import socket
import subprocess
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from memleak_android.host.console import PROGRAM
from memleak_android.host.errors import UsageError
from memleak_android.host.live.messages import (
    Begin,
    Close,
    Head,
    Notice,
    SessionMessage,
    Sites,
    ViewRequest,
    encode,
    view_requests,
)
from memleak_android.unwind.file_writing import append

CLOSE_S = 5.0  # for the child to restore the screen
STDIN, STDOUT, STDERR = 0, 1, 2
# Resets what a killed view leaves: alternate buffer, hidden cursor, mouse reports, bracketed paste.
RESTORE = b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[<u"


def check_terminal() -> None:
    """Raises UsageError without textual or a terminal."""
    try:
        is_there = find_spec("textual") is not None
    except ValueError:  # another module of this name has no spec
        is_there = False
    if not is_there:
        raise UsageError(
            "--live needs the package textual", "pip install 'memleak-android[live]', or use --interval 5s"
        )
    if not os.isatty(STDERR) or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError(
            "--live draws on a terminal, and standard error is not one",
            "use --interval 5s, which prints lines",
        )
    os.close(_keys_from_terminal())


def _keys_from_terminal() -> int:
    """A descriptor to read keys from: standard input, or the terminal itself where that is a file."""
    try:
        return os.dup(STDIN) if os.isatty(STDIN) else os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"--live reads keys from a terminal, and there is none: {error.strerror}", "use --interval 5s"
        ) from None


class LiveWindow:
    """Sends messages to the drawing process and passes the user's requests to `ask`, in a thread of its own.

    Never waits for the screen: only the latest counters and the latest snapshot are queued.
    """

    def __init__(self, keys: int, screen: int, ask: Callable[[ViewRequest], None]) -> None:
        self._ask = ask
        self._stream, theirs = socket.socketpair()
        # -P: import nothing from the working directory
        argv = [sys.executable, "-P", "-m", "memleak_android.host.live", str(theirs.fileno())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the target's is behind ours
        self._screen, self._modes = screen, termios.tcgetattr(screen)
        with theirs:
            self._process = subprocess.Popen(
                argv, stdin=keys, stdout=screen, stderr=screen, pass_fds=[theirs.fileno()], env=environment
            )
        self._changed = threading.Condition()
        self._latest: dict[type[SessionMessage], SessionMessage] = {}
        self._lines: deque[SessionMessage] = deque(maxlen=100)
        self._is_open = True
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._listen)]
        for thread in self._threads:
            thread.start()

    def post(self, message: SessionMessage) -> None:
        """Callable from any thread; returns at once."""
        with self._changed:
            if isinstance(message, (Head, Sites)):
                self._latest[type(message)] = message
            else:
                self._lines.append(message)
            self._changed.notify()

    def close(self) -> None:
        """Ends the drawing process and waits until the terminal is restored."""
        self.post(Close())
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        with self._changed:
            self._is_open = False
            self._changed.notify()
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        if self._process.poll() is None:
            self._process.kill()
        if self._process.wait():
            self._put_back()
        for thread in self._threads:
            thread.join()
        self._stream.close()

    def _put_back(self) -> None:
        """Restores the terminal after the drawing process was killed."""
        with suppress(OSError, termios.error):
            os.write(self._screen, RESTORE)
            termios.tcsetattr(self._screen, termios.TCSANOW, self._modes)

    def _send(self) -> None:
        with suppress(OSError):  # the view is gone
            while (message := self._next()) is not None:
                self._stream.sendall(encode(message))

    def _next(self) -> SessionMessage | None:
        with self._changed:
            while self._is_open:
                if self._lines:
                    return self._lines.popleft()
                if self._latest:
                    return self._latest.pop(next(iter(self._latest)))
                self._changed.wait()
        return None

    def _listen(self) -> None:
        with suppress(OSError, msgspec.DecodeError):
            for wanted in view_requests(self._stream):
                self._ask(wanted)
        if self._is_open and self._process.wait():
            self._put_back()
            text = "the view is gone; measuring goes on, Ctrl-C ends it and reports\r\n"
            with suppress(OSError):
                os.write(self._screen, f"{PROGRAM}: {text}".encode())


class _KeptLines(io.StringIO):
    """Replaces standard error while the view draws: keeps the text and shows each line."""

    show: Callable[[str], None] = staticmethod(lambda line: None)

    def write(self, text: str) -> int:
        if line := text.strip():
            self.show(line.removeprefix(f"{PROGRAM}: "))
        return super().write(text)


@contextmanager
def live_window(begin: Begin, ask: Callable[[ViewRequest], None]) -> Iterator[LiveWindow]:
    """Gives the terminal to the view. The command's output goes to begin.output; our lines are shown in the view and
    printed again afterwards. Redirected standard streams stay as they are.
    """
    with ExitStack() as stack:
        keys = _keys_from_terminal()
        stack.callback(os.close, keys)
        screen = os.dup(STDERR)
        stack.callback(os.close, screen)
        kept = _KeptLines()
        stack.callback(lambda: sys.stderr.write(kept.getvalue()))
        stack.enter_context(_without_terminal(Path(begin.output) if begin.output else None))
        window = LiveWindow(keys, screen, ask)
        stack.callback(window.close)
        kept.show = lambda line: window.post(Notice(line))
        stack.enter_context(redirect_stderr(kept))
        window.post(begin)
        yield window


@contextmanager
def _without_terminal(output: Path | None) -> Iterator[None]:
    """Redirects standard streams from the terminal to `output` (None: /dev/null), and input from /dev/null."""
    target = append(output) if output else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in (STDIN, STDOUT, STDERR) if os.isatty(number)}
    try:
        for number in saved:
            os.dup2(nothing if number == STDIN else target, number)
        yield
    finally:
        sys.stdout.flush()
        for number, fd in saved.items():
            os.dup2(fd, number)
            os.close(fd)
        os.close(target)
        os.close(nothing)
