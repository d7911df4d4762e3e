"""What is asked of a machine that is measured, be it this one or one behind adb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from memleak_android.host.machine.parse import last_line

RUN_TIMEOUT_S = 20.0
OUTPUT_BYTES_MAX = 8 << 20
PULL_BYTES_MAX = 2 << 30  # no library is larger; a file that never ends must not fill the disk


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program that has ended said. code: its exit status, 128 + N where signal N ended it."""

    code: int
    out: bytes
    err: bytes

    @property
    def complaint(self) -> str:
        """The last line of its stderr, printable and short; "" where it said nothing."""
        return last_line(self.err)


@dataclass(frozen=True, slots=True)
class AppUser:
    """Who run-as becomes: an app's uid under one of the device's users."""

    package: str
    user: int = 0

    @property
    def words(self) -> list[str]:
        """`usage: run-as <package-name> [--user <uid>] <command>` (AOSP system/core/run-as/run-as.cpp)."""
        return ["run-as", self.package, *(["--user", str(self.user)] if self.user else [])]


class Channel(Protocol):
    """A running agent: its three streams and its end. Used by one thread at a time.

    is_remote: the way to it can be lost without either side being told.
    """

    @property
    def is_remote(self) -> bool: ...

    def exchange(self, outgoing: bytearray, timeout_s: float, wake: int = -1) -> bytes | None:
        """Sends what can be sent of `outgoing`, taking it off the front, and waits for output at most so long, and no
        longer than until the descriptor `wake` can be read (always the same one).

        Returns a piece of its stdout, b"" where there is none yet, None after the last one. Raises ConnectionCut
        where the target can no longer be heard.
        """
        ...

    def last_words(self) -> str:
        """The last line of its stderr so far, "" where there is none."""
        ...

    def end_text(self) -> str:
        """How it ended, after its output has: `exit code 3`, `killed by SIGKILL`."""
        ...

    def close(self, patience_s: float, killed_s: float) -> None:
        """Ends it by closing its input, then harder. patience_s: for each step; killed_s: after the hardest."""
        ...


class Relay(Protocol):
    """A program whose standard streams are ours: its input is our stdin, what it prints goes to our stdout and stderr."""

    def drain(self) -> None:
        """Returns when what it and its children printed has been written, or nothing has come for a second."""
        ...

    def close(self) -> None:
        """Nothing is relayed any more."""
        ...


class Deployment(Protocol):
    """Our files on the target, for as long as it is open and no longer, however that ends.

    paths: where each file is there, by the name it was given.
    """

    paths: Mapping[str, str]

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Target(Protocol):
    """A machine. Every argument reaches its program as it is given: quoting is the target's business.

    serial: as adb names it, "" for this machine. name: for messages ("this machine", "device emulator-5554").
    as_root: by whatever way to root there is; run_as: as this app. At most one of them, and neither
    where is_local. All raise DeviceError (no such device, cut, too slow, no way to root).
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
        ...

    @property
    def has_root(self) -> bool:
        """as_root works: we are root, or there is a way to become it."""
        ...

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
        ...

    def read_file(
        self,
        path: str,
        limit_bytes: int = OUTPUT_BYTES_MAX,
        *,
        as_root: bool = False,
        run_as: AppUser | None = None,
    ) -> bytes:
        """The first limit_bytes of a file, of /proc too. Raises OSError as open() and read() do."""
        ...

    def pull(
        self,
        path: str,
        into: Path,
        *,
        as_root: bool = False,
        run_as: AppUser | None = None,
        limit_bytes: int = PULL_BYTES_MAX,
    ) -> None:
        """Copies a whole file to `into`, which is only there when it is whole. Raises OSError: EFBIG beyond the limit."""
        ...

    def open_agent(
        self, argv: Sequence[str], *, as_root: bool = False, run_as: AppUser | None = None
    ) -> Channel:
        """Starts a program that is talked to.

        Where it cannot be started this raises TracerError here; a device's shell says so by exit code 126 or 127.
        """
        ...

    def relay(self, argv: Sequence[str], *, as_root: bool = False) -> Relay:
        """Starts a program with our own standard streams."""
        ...

    def deploy(self, files: Mapping[str, Path], *, run_as: AppUser | None = None) -> Deployment:
        """Brings files there, executable. run_as: into the app's own folder."""
        ...
