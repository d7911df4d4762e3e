"""A command that is forked and waits before its exec until the probes are attached."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct

from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.bcc.config import Configuration

# Ignored by this process: the first by __main__.py, the others by Python.
_RESTORED = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)


class HeldCommand:
    """Forks in the constructor, before this process loads more libraries."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._gate, gate = _pipe_ends()
        self._failure, failure = _pipe_ends(reverse=True)
        self.pid = os.fork()
        if not self.pid:
            os.close(self._gate)
            self._become(gate, failure)
        os.close(gate)
        os.close(failure)

    def release(self) -> None:
        """Lets the command run. Raises TargetError if it cannot be started."""
        os.write(self._gate, b"!")
        answer = os.read(self._failure, 4)
        if answer:
            reason = os.strerror(struct.unpack("<i", answer)[0])
            raise TargetError(f"cannot start {os.fsdecode(self._configuration.command[0])}: {reason}")

    def end(self) -> None:
        """Ends a command that was not released; a released one keeps running."""
        os.close(self._gate)

    def _become(self, gate: int, failure: int) -> None:
        """Waits for release(), then calls exec. Runs in the child."""
        error = 0
        try:
            if not os.read(gate, 1):
                os._exit(127)
            for number, descriptor in enumerate(self._configuration.stdio):
                source = os.open(os.devnull, os.O_RDWR) if descriptor < 0 else descriptor
                os.dup2(source, number)
            os.closerange(3, failure)
            for number in _RESTORED:
                signal.signal(number, signal.SIG_DFL)
            environment = dict(os.environb) | self._configuration.environment
            os.execvpe(self._configuration.command[0], self._configuration.command, environment)
        except OSError as failed:
            error = failed.errno or 0
        with contextlib.suppress(OSError):
            os.write(failure, struct.pack("<i", error))
        os._exit(127)


def _pipe_ends(reverse: bool = False) -> tuple[int, int]:
    """The parent's and the child's end, both closed by exec. The parent writes, or reads if `reverse`."""
    read, write = os.pipe()
    high = [_raised(read), _raised(write)]
    return (high[0], high[1]) if reverse else (high[1], high[0])


def _raised(descriptor: int) -> int:
    """The same file at a number of 10 or more: lower ones are in the way of the command's stdio."""
    raised = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return raised
