"""The socket of a session, through which `memleak-android mark NAME` sets marks."""

import os
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from memleak_android.host.errors import UsageError
from memleak_android.host.session.spool import spool_root
from memleak_android.unwind.file_writing import folder_at, make_folder, remove

NAME_BYTES_MAX = 200
MARKS_MAX = 10_000
ANSWER_TIMEOUT_S = 60.0  # of a snapshot of a large table
SUFFIX = ".socket"


@dataclass(slots=True)
class Marks:
    """Accepts names from the socket; each gets a snapshot, then an answer. Without a socket only ask() works.

    on_set: called with the name of each mark, and its count so far.
    """

    _listener: socket.socket | None = None
    on_set: Callable[[str, int], None] = lambda name, count: None
    _asking: socket.socket | None = None
    _name: str = ""
    _is_own: bool = False  # the mark in progress came from ask()
    _wanted: deque[str] = field(default_factory=deque)
    _set: list[tuple[str, int]] = field(default_factory=list)

    def ask(self, name: str) -> None:
        """Requests a mark from within this process, from any thread."""
        self._wanted.append(name.encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore"))

    def wants_snapshot(self) -> bool:
        """True once for each requested mark; the next request waits until this mark is set."""
        if self._asking is not None or self._is_own:
            return False
        if self._wanted and len(self._set) < MARKS_MAX:
            self._name, self._is_own = self._wanted.popleft(), True
            return True
        if self._listener is None:
            return False
        with suppress(OSError):
            asking, _ = self._listener.accept()
            asking.settimeout(0.2)  # the name is sent at once, by our own program
            with suppress(OSError):
                self._name = asking.recv(NAME_BYTES_MAX).decode("utf-8", "replace")
            if self._name and len(self._set) < MARKS_MAX:
                self._asking = asking
                return True
            asking.close()
        return False

    def snapshot_taken(self, timestamp_ns: int) -> None:
        """timestamp_ns: of the target's monotonic clock."""
        if self._asking is None and not self._is_own:
            return
        self._set.append((self._name, timestamp_ns))
        count = sum(name == self._name for name, _ in self._set)
        if self._asking is not None:
            with suppress(OSError):
                self._asking.sendall(str(count).encode())
            self._asking.close()
        self.on_set(self._name, count)
        self._asking, self._name, self._is_own = None, "", False

    @property
    def recorded(self) -> list[tuple[str, int]]:
        """Names and times of the marks, in order of time."""
        return list(self._set)

    def close(self) -> None:
        for connection in (self._asking, self._listener):
            if connection is not None:
                connection.close()


def sessions_root() -> Path:
    """The folder of the sessions' sockets, named by process id."""
    return spool_root().parent / "sessions"


@contextmanager
def open_marks() -> Iterator[Marks]:
    """Marks without a socket if none can be made."""
    path = sessions_root() / f"{os.getpid()}{SUFFIX}"
    marks = Marks()
    try:
        with suppress(OSError):
            make_folder(path.parent, 0o700)
            remove(path)
            marks = Marks(_listen(path))
        yield marks
    finally:
        marks.close()
        with suppress(OSError):
            remove(path)


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Of a socket, by its folder's descriptor: paths may be longer than the 107 bytes of sun_path (unix(7)). Raises OSError."""
    with folder_at(path.parent) as folder:
        yield f"/proc/self/fd/{folder}/{path.name}"


def _listen(path: Path) -> socket.socket:
    """Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _address(path) as address:
            listener.bind(address)
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def running_sessions() -> dict[int, Path]:
    """Sockets of the sessions of this user by process id. Removes those of ended processes."""
    found = {}
    with suppress(OSError):
        for path in sorted(sessions_root().iterdir()):
            number = path.name.removesuffix(SUFFIX)
            if number.isdecimal() and stat.S_ISSOCK(path.lstat().st_mode):
                if _is_running(int(number)):
                    found[int(number)] = path
                else:
                    remove(path)
    return found


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def set_mark(path: Path, name: str) -> int:
    """Waits for the snapshot. Returns the number of marks of this name. Raises UsageError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(ANSWER_TIMEOUT_S)
        try:
            with _address(path) as address:
                asking.connect(address)
            asking.sendall(name.encode())
            answer = asking.recv(NAME_BYTES_MAX)
        except OSError as error:
            raise UsageError(f"the session does not answer: {error}", "is it still measuring?") from None
    if not answer.isdigit():
        raise UsageError("the session ended before the mark was set", "start another")
    return int(answer)
