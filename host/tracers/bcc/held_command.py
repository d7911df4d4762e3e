"""A command that is forked, and held before its exec until the probes are placed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct

from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.bcc.config import Configuration

_RESTORED = (
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)  # Python ignores the last two, the agent the first


class HeldCommand:
    """Forks at once: the fewer libraries are loaded by then, the better."""

    def __init__(self, told: Configuration) -> None:
        self._told = told
        self._gate, gate = _pipe_ends()
        self._failure, failure = _pipe_ends(reverse=True)
        self.pid = os.fork()
        if not self.pid:
            os.close(self._gate)
            self._become(gate, failure)
        os.close(gate)
        os.close(failure)

    def release(self) -> None:
        """Raises TargetError where the command cannot be started."""
        os.write(self._gate, b"!")
        answer = os.read(self._failure, 4)
        if answer:
            reason = os.strerror(struct.unpack("<i", answer)[0])
            raise TargetError(f"cannot start {os.fsdecode(self._told.command[0])}: {reason}")

    def end(self) -> None:
        """A command that does not run yet ends with us; one that runs goes on."""
        os.close(self._gate)

    def _become(self, gate: int, failure: int) -> None:
        """In the child."""
        error = 0
        try:
            if not os.read(gate, 1):
                os._exit(127)
            for number, descriptor in enumerate(self._told.stdio):
                source = os.open(os.devnull, os.O_RDWR) if descriptor < 0 else descriptor
                os.dup2(source, number)
            os.closerange(3, failure)
            for one in _RESTORED:
                signal.signal(one, signal.SIG_DFL)
            environment = dict(os.environb) | self._told.environment
            os.execvpe(self._told.command[0], self._told.command, environment)
        except OSError as failed:
            error = failed.errno or 0
        with contextlib.suppress(OSError):
            os.write(failure, struct.pack("<i", error))
        os._exit(127)


def _pipe_ends(reverse: bool = False) -> tuple[int, int]:
    """The parent's and the child's, both closed by exec: parent writes, or (reverse) reads."""
    read, write = os.pipe()
    high = [_raised(read), _raised(write)]
    return (high[0], high[1]) if reverse else (high[1], high[0])


def _raised(descriptor: int) -> int:
    """Above those that the agent was started with, which the command's become."""
    raised = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return raised
