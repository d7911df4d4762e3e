"""The exit codes, and the failures that a user sees: what failed, with which datum, and the way out."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the program (docs/use/ci.md)."""

    OK = 0
    BUG = 1
    USAGE = 2
    DEVICE = 3
    TARGET = 4
    TRACER = 5
    INCOMPLETE = 6
    LEAKS = 23
    ABORTED = 130  # as by SIGINT
    BROKEN_PIPE = 141  # as by SIGPIPE


class MemleakError(Exception):
    """One line for the user, and its exit code.

    message: what failed, lower case, with the datum, no full stop. hint: what to do about it.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(MemleakError):
    """The command line, or an input file that cannot be used."""

    exit_code = ExitCode.USAGE


class RecordingError(UsageError):
    """A recording without readable blocks: another format or version, or truncated before the first block."""


class OutputExistsError(UsageError):
    """Nothing existing is overwritten without --force."""

    def __init__(self, path: object) -> None:
        super().__init__(f"{path} exists, not overwritten", "use --force or another name")


class DeviceError(MemleakError):
    """The machine or device cannot be reached or used."""

    exit_code = ExitCode.DEVICE


class ConnectionCut(DeviceError):
    """The device disconnected during the session. What arrived before is valid."""


class TargetError(MemleakError):
    """The process or command cannot be measured."""

    exit_code = ExitCode.TARGET


class TracerError(MemleakError):
    """The tracer cannot run here, or died."""

    exit_code = ExitCode.TRACER


class IncompleteError(MemleakError):
    """The result is incomplete; it has been written."""

    exit_code = ExitCode.INCOMPLETE
