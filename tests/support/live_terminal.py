"""A terminal in memory: the program runs on a pty, a screen says what stands where."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

import pyte
from pyte.screens import Char

ALTERNATE_SCREEN, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A program that has a terminal of its own. raw: all that it wrote there."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        columns: int = 100,
        lines: int = 30,
        **how: object,
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns, lines)
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.modes_before = termios.tcgetattr(slave)
        rest = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
        streams: dict[str, object] = {"stdin": slave, "stdout": slave, "stderr": slave} | how
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *argv],
            env={**rest, "TERM": "xterm-256color"},
            **streams,  # type: ignore[call-overload]
        )
        self._slave = slave  # kept open: what it was set to is asked for at the end

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if hasattr(self, "_screen"):
            self._screen.resize(lines, columns)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def rows(self) -> list[list[Char]]:
        """The screen's characters with their colours."""
        return [
            [self._screen.buffer[row][column] for column in range(self._screen.columns)]
            for row in range(self._screen.lines)
        ]

    @property
    def modes(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    def assert_put_back(self) -> None:
        assert self.raw.count(ALTERNATE_SCREEN) == self.raw.count(BACK) == 1
        assert self.modes == self.modes_before

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, found: Callable[[str], bool] | str, what: str = "", seconds: float = 120) -> str:
        """The screen once it is as wanted, or shows this text; a failure shows what it was instead."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(0.1)
            if found in self.text if isinstance(found, str) else found(self.text):
                return self.text
        raise AssertionError(f"{what or found}\n{self.text}")

    def end(self, seconds: float = 90) -> int:
        """Waits for the program's end and returns its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        while self._read(0):
            pass
        return self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # EIO: the other end is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)
