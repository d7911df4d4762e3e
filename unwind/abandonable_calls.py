"""Calls that may never return, made by a process of ours that can be left behind.

A file system in user space (FUSE) answers when its server likes, and so does memory that maps its files. Such a wait
cannot be killed (request_wait_answer() in fs/fuse/dev.c): a process of which one thread waits never ends.
"""

import errno
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MESSAGE_BYTES_MAX = 1 << 17  # below the default of net.core.wmem_default
# Halved at each call that is given up, to no less than what a busy machine needs for a file that comes.
_PATIENCE_S, _PATIENCE_MIN_S = 5.0, 1.0
_RUNS_MAX = 30  # times that its patience ends while the process runs, or waits for a processor: nothing of a file system
_GOES_ON = b"goes on"

# Says that the call has come farther, which begins its time anew.
Progress = Callable[[], None]
# A module's function: its result, and a descriptor that the caller gets, or -1.
Call = Callable[..., tuple[Any, int]]


class _Callee:
    """The process: forked at the first call, and again after one that never returned."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.patience_s = _PATIENCE_S
        self.ours: socket.socket | None = None
        self.pid = self.of_pid = 0

    def connected(self) -> socket.socket:
        if self.ours is None or self.of_pid != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.pid, self.of_pid = os.fork(), os.getpid()
            if not self.pid:
                _serve(theirs)
            theirs.close()
            self.ours = ours
        return self.ours

    def received(self, connection: socket.socket) -> tuple[bytes, list[int]]:
        """Its next message, and a descriptor that came with it. Raises TimeoutError."""
        for _ in range(_RUNS_MAX):
            try:
                message, descriptors, *_ = socket.recv_fds(connection, _MESSAGE_BYTES_MAX, 1)
                return message, descriptors
            except TimeoutError:
                if not self.runs():
                    break
        raise TimeoutError

    def runs(self) -> bool:
        """Whether it is on a processor, or waits for one (proc(5), /proc/PID/stat)."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as stat:
                return stat.read().rpartition(b")")[2].split()[0] == b"R"
        except OSError:
            return False

    def abandon(self) -> None:
        """Kills the process, and does not wait for its end."""
        if self.ours is not None:
            self.ours.close()
            self.ours = None
            os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


_callee = _Callee()


def call(function: Call, *arguments: Any) -> tuple[Any, int]:
    """`function(progress, *arguments)` in the other process.

    Raises its OSError or ValueError, TimeoutError where it does not return, and OSError where it ends the process.
    """
    with _callee.lock:
        connection, patience_s = _callee.connected(), _callee.patience_s
        try:
            connection.settimeout(patience_s)
            connection.send(pickle.dumps((function, arguments)))
            message, descriptors = _GOES_ON, list[int]()
            while message == _GOES_ON:
                message, descriptors = _callee.received(connection)
            if not message:
                raise OSError(errno.EIO, "the process that reads for us has ended")
        except TimeoutError:
            _callee.patience_s = max(patience_s / 2, _PATIENCE_MIN_S)
            _callee.abandon()
            raise TimeoutError(
                errno.ETIMEDOUT, f"nothing came from its file system for {patience_s:g} s"
            ) from None
        except BaseException:
            _callee.abandon()  # its answer would be taken for the next one's
            raise
    result = pickle.loads(message)
    if isinstance(result, (OSError, ValueError)):
        raise result
    return result, descriptors[0] if descriptors else -1


def _serve(theirs: socket.socket) -> None:
    """Never returns: the forked process is no second copy of the program, and holds none of its pipes open."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        connection = theirs.fileno()
        os.closerange(3, connection)
        os.closerange(connection + 1, os.sysconf("SC_OPEN_MAX"))
        while message := theirs.recv(_MESSAGE_BYTES_MAX):
            function, arguments = pickle.loads(message)
            _answer(theirs, function, arguments)
    finally:
        os._exit(0)


def _answer(theirs: socket.socket, function: Call, arguments: tuple[Any, ...]) -> None:
    try:
        result, descriptor = function(lambda: theirs.send(_GOES_ON), *arguments)
    except OSError as error:
        result, descriptor = OSError(error.errno, error.strerror, error.filename), -1
    except ValueError as error:  # a path with a NUL
        result, descriptor = ValueError(str(error)), -1
    socket.send_fds(theirs, [pickle.dumps(result)], [descriptor] if descriptor >= 0 else [])
    if descriptor >= 0:
        os.close(descriptor)
