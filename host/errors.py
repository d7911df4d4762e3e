"""Every failure a user can meet: what failed, with which datum, and the way out."""

from __future__ import annotations


class MemleakError(Exception):
    """One line for the user and the exit code that goes with it (exit codes: docs/use/ci.md).

    message: what failed, lower case, with the datum, no full stop. hint: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(MemleakError):
    """The command line, or an input file that cannot be used."""

    exit_code = 2


class RecordingError(UsageError):
    """A recording that holds nothing readable: not ours, another version, cut before the first block."""


class OutputExistsError(UsageError):
    """Nothing existing is overwritten without --force."""

    def __init__(self, path: object) -> None:
        super().__init__(f"{path} exists, not overwritten", "use --force or another name")


class DeviceError(MemleakError):
    """The machine or device that should be measured cannot be reached or used."""

    exit_code = 3


class ConnectionCut(DeviceError):
    """The device is gone in the middle of it. What arrived before is good."""


class TargetError(MemleakError):
    """The process or command that should be measured cannot be used."""

    exit_code = 4


class TracerError(MemleakError):
    """The tracer cannot run here, or died."""

    exit_code = 5


class IncompleteError(MemleakError):
    """A result exists but is not whole; it has been written."""

    exit_code = 6
