"""The interface of a measured machine, this one or one behind adb."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from memleak_android.host.machine.parse import last_line

RUN_TIMEOUT_S = 20.0
OUTPUT_BYTES_MAX = 8 << 20
PULL_BYTES_MAX = 2 << 30  # no library is larger; an endless file must not fill the disk


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of an ended program. code: its exit status, 128 + N if signal N ended it."""

    code: int
    out: bytes
    err: bytes

    @property
    def complaint(self) -> str:
        """The last line of its stderr, printable and short; "" if there is none."""
        return last_line(self.err)


@dataclass(frozen=True, slots=True)
class AppUser:
    """The user that run-as becomes: an app's uid under one of the device's users."""

    package: str
    user: int = 0

    @property
    def words(self) -> list[str]:
        """`usage: run-as <package-name> [--user <uid>] <command>` (AOSP system/core/run-as/run-as.cpp)."""
        return ["run-as", self.package, *(["--user", str(self.user)] if self.user else [])]


class Channel(Protocol):
    """A running agent: its three streams and its end. Used by one thread at a time.

    is_remote: the connection can be lost without notice to either side.
    """

    @property
    def is_remote(self) -> bool: ...

    def exchange(self, outgoing: bytearray, timeout_s: float, wake: int = -1) -> bytes | None:
        """Sends what it can of `outgoing`, removes that from its front, and waits for output.

        It returns after the timeout at the latest, or when `wake` (always the same descriptor) becomes readable.
        Returns a piece of stdout, b"" if there is none yet, None after the last. Raises ConnectionCut if the connection is lost.
        """

    def last_words(self) -> str:
        """The last line of its stderr so far, "" if there is none."""

    def end_text(self) -> str:
        """How it ended, valid after its output has ended: `exit code 3`, `killed by SIGKILL`."""

    def close(self, patience_s: float, killed_s: float) -> None:
        """Ends the agent by closing its input, then by signals.

        patience_s: wait after each step.
        killed_s: wait after the last step.
        """


class Relay(Protocol):
    """A program that uses our standard streams."""

    def drain(self) -> None:
        """Returns when the output of the program and its children is written, or after a second of silence."""

    def close(self) -> None:
        """Stops relaying."""


class Deployment(Protocol):
    """Files copied to the target, removed when this is closed or its process ends.

    paths: of each file on the target, by the name in deploy().
    """

    paths: Mapping[str, str]

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Target(Protocol):
    """A machine. Arguments reach their program unchanged: implementations do the quoting.

    serial: adb's name of it, "" for this machine.
    name: for messages ("this machine", "device emulator-5554").
    as_root: run as root.
    run_as: run as this app. Neither together with as_root nor if is_local.
    All methods raise DeviceError: no such device, connection lost, timeout, no way to root.
    """

    @property
    def serial(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def is_local(self) -> bool: ...

    @property
    def arch(self) -> str:
        """Of its kernel: x86_64, arm64, arm32."""

    @property
    def has_root(self) -> bool:
        """Whether as_root works."""

    def run(
        self,
        argv: Sequence[str],
        *,
        as_root: bool = False,
        run_as: AppUser | None = None,
        stdin: bytes = b"",
        timeout_s: float = RUN_TIMEOUT_S,
        limit_bytes: int = OUTPUT_BYTES_MAX,
    ) -> Answer:
        """Runs a program to its end. Raises DeviceError beyond the time or the amount of output."""

    def read_file(self, path: str, *, as_root: bool = False, run_as: AppUser | None = None) -> bytes:
        """The first OUTPUT_BYTES_MAX of a file, of /proc too. Raises OSError as open() and read() do."""

    def pull(self, path: str, into: Path, *, as_root: bool = False, run_as: AppUser | None = None) -> None:
        """Copies a whole file to `into`, which appears only when complete. Raises OSError: EFBIG beyond PULL_BYTES_MAX."""

    def open_agent(
        self, argv: Sequence[str], *, as_root: bool = False, run_as: AppUser | None = None
    ) -> Channel:
        """Starts a program to exchange data with.

        Raises TracerError if it cannot be started here. A device's shell reports that by exit code 126 or 127 instead.
        """

    def relay(self, argv: Sequence[str], *, as_root: bool = False) -> Relay:
        """Starts a program with our own standard streams."""

    def deploy(self, files: Mapping[str, Path], *, run_as: AppUser | None = None) -> Deployment:
        """Copies files to the target and makes them executable. run_as: into the app's own folder."""
