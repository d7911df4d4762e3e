"""A device behind adb as a target. Every command is quoted, goes through shell protocol v2, and has a timeout and a size limit."""

import errno
import os
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError
from memleak_android.host.machine import target
from memleak_android.host.machine.adb import server
from memleak_android.host.machine.adb.channel import AdbChannel, RelayedStreams
from memleak_android.host.machine.adb.keeper import AdbDeployment
from memleak_android.host.machine.binaries import ARCH_OF_MACHINE
from memleak_android.host.machine.target import (
    OUTPUT_BYTES_MAX,
    RUN_TIMEOUT_S,
    Answer,
    AppUser,
)
from memleak_android.unwind.file_writing import appearing

_POLL_S = 0.1
_CLOSE_S = 0.2
_PULL_SILENCE_S = 20.0
OPEN_TIMEOUT_S = 15.0  # a device that wakes up takes seconds


class RootRoute(Enum):
    """ADBD: adbd itself runs as root. SU_USER: AOSP's `su 0 COMMAND ARG…`. SU_COMMAND: `su -c LINE` of Magisk,
    KernelSU and SuperSU. NONE: no way found.
    """

    ADBD = "adbd"
    SU_USER = "su 0"
    SU_COMMAND = "su -c"
    NONE = "none"


# Each su misreads the other's arguments, so only a uid of 0 on stdout is proof. A superuser app
# may ask on the screen first: then this takes as long as the user's answer.
PROBE = "id -u; echo .; su 0 id -u </dev/null; echo .; su -c 'id -u' </dev/null; echo ."
PROBE_TIMEOUT_S = 45.0
_ORDER = (RootRoute.ADBD, RootRoute.SU_USER, RootRoute.SU_COMMAND)


def parse_probe(out: bytes) -> RootRoute:
    """The route that the output of PROBE proves."""
    answers = out.decode("utf-8", "replace").replace("\r", "").split(".\n")
    for route, answer in zip(_ORDER, answers, strict=False):
        if answer.strip() == "0":
            return route
    return RootRoute.NONE


def elevated(argv: Sequence[str], route: RootRoute) -> list[str]:
    """The words that run `argv` as root. Raises ValueError if the device has no way to root."""
    match route:
        case RootRoute.ADBD:
            return list(argv)
        case RootRoute.SU_USER:
            return ["su", "0", *argv]
        case RootRoute.SU_COMMAND:
            return ["su", "-c", shlex.join(argv)]
        case RootRoute.NONE:
            raise ValueError("no route to root")


@dataclass(frozen=True)
class AdbDevice:
    """Implements Target for a row of the adb server whose state is `device`."""

    row: server.DeviceRow
    is_local = False

    @property
    def serial(self) -> str:
        return self.row.serial

    @property
    def name(self) -> str:
        return f"device {one_line(self.row.serial)}"

    @cached_property
    def arch(self) -> str:
        machine = self.run(["uname", "-m"]).out.decode("utf-8", "replace").strip()
        if machine not in ARCH_OF_MACHINE:
            expected = ", ".join(sorted(ARCH_OF_MACHINE))
            raise DeviceError(
                f"{self.name}: unsupported machine {one_line(machine)!r} (expected {expected})",
                "measure another device",
            )
        return ARCH_OF_MACHINE[machine]

    @cached_property
    def root_route(self) -> RootRoute:
        hint = "accept the request for root on its screen, and try again"
        channel = self._open(PROBE)
        answer = self._finish(channel, "su", b"", PROBE_TIMEOUT_S, OUTPUT_BYTES_MAX, hint)
        return parse_probe(answer.out)

    @property
    def has_root(self) -> bool:
        return self.root_route is not RootRoute.NONE

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
        channel = self._open(self._line(argv, as_root, run_as))
        hint = "try again, or `adb reconnect`"
        return self._finish(channel, argv[0], stdin, timeout_s, limit_bytes, hint)

    def read_file(self, path: str, *, as_root: bool = False, run_as: AppUser | None = None) -> bytes:
        found = bytearray()
        for piece in self._contents(path, as_root, run_as, RUN_TIMEOUT_S):
            found += piece
            if len(found) >= OUTPUT_BYTES_MAX:
                break
        return bytes(found[:OUTPUT_BYTES_MAX])

    def pull(self, path: str, into: Path, *, as_root: bool = False, run_as: AppUser | None = None) -> None:
        with appearing(into) as file:  # other sessions may pull the same file
            for piece in self._contents(path, as_root, run_as, None):
                file.write(piece)
                if file.tell() > target.PULL_BYTES_MAX:
                    raise OSError(errno.EFBIG, f"it has more than {target.PULL_BYTES_MAX} bytes", path)

    def open_agent(
        self, argv: Sequence[str], *, as_root: bool = False, run_as: AppUser | None = None
    ) -> AdbChannel:
        return self._open(self._line(argv, as_root, run_as))

    def relay(self, argv: Sequence[str], *, as_root: bool = False) -> RelayedStreams:
        return RelayedStreams(self._stream(self._line(argv, as_root, None)))

    def deploy(self, files: Mapping[str, Path], *, run_as: AppUser | None = None) -> AdbDeployment:
        return AdbDeployment(self, files, run_as)

    def _line(self, argv: Sequence[str], as_root: bool, run_as: AppUser | None) -> str:
        """The command line for the device's shell. exec: so that adbd's SIGHUP reaches the program itself."""
        if any("\0" in word for word in argv):
            raise DeviceError("an argument contains a NUL byte", "remove it")
        words = list(argv)
        if run_as:
            words = [*run_as.words, *words]
        elif as_root:
            if not self.has_root:
                raise DeviceError(
                    f"{self.name} has no root (adbd runs as shell, and no su answers)",
                    "root it, use an emulator image without Google Play, or a debuggable app",
                )
            words = elevated(words, self.root_route)
        return f"exec {shlex.join(words)}"

    def _open(self, line: str) -> AdbChannel:
        return AdbChannel(self._stream(line), self.name)

    def _stream(self, line: str) -> socket.socket:
        if "shell_v2" not in self._features:
            raise DeviceError(
                f"{self.name} has no shell protocol v2 (Android 6 or older), the only one with exit codes",
                "use Android 7 or later",
            )
        return server.open_service(self.row, f"shell,v2,raw:{line}", OPEN_TIMEOUT_S)

    @cached_property
    def _features(self) -> frozenset[str]:
        return server.features(self.row)

    def _finish(
        self, channel: AdbChannel, what: str, stdin: bytes, timeout_s: float, limit_bytes: int, hint: str
    ) -> Answer:
        """Reads the output until the program ends. hint: for the timeout error."""
        out = bytearray()
        try:
            for piece in self._pieces(channel, stdin, time.monotonic() + timeout_s):
                out += piece
                if len(out) > limit_bytes:
                    raise DeviceError(
                        f"{self.name} answered {one_line(what)} with more than {limit_bytes} bytes",
                        "it does not behave like Android: see `memleak-android doctor`",
                    )
        except TimeoutError:
            raise DeviceError(
                f"{self.name} did not answer {one_line(what)} within {timeout_s:g} s", hint
            ) from None
        finally:
            channel.close(_CLOSE_S if channel.exit_code is None else 0, 0)
        assert channel.exit_code is not None
        return Answer(channel.exit_code, bytes(out), channel.stderr)

    def _pieces(self, channel: AdbChannel, stdin: bytes, deadline: float | None) -> Iterator[bytes]:
        """Pieces of the output until the program ends. Without a deadline, it fails only after a long silence."""
        outgoing, is_open = bytearray(stdin), True
        limit = time.monotonic() + _PULL_SILENCE_S if deadline is None else deadline
        while (piece := channel.exchange(outgoing, _POLL_S)) is not None:
            if is_open and not outgoing:
                channel.close_input()
                is_open = False
            if piece:
                yield piece
            if piece and deadline is None:
                limit = time.monotonic() + _PULL_SILENCE_S
            elif time.monotonic() > limit:
                raise TimeoutError

    def _contents(
        self, path: str, as_root: bool, run_as: AppUser | None, timeout_s: float | None
    ) -> Iterator[bytes]:
        """Pieces of a file, read by cat, which every Android has. Its stderr comes last, before the exit status."""
        channel = self._open(self._line(["cat", "--", path], as_root, run_as))
        try:
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            yield from self._pieces(channel, b"", deadline)
            if channel.exit_code:
                raise _file_error(channel.last_words(), path)
        except TimeoutError:
            raise DeviceError(f"{self.name} stopped sending {one_line(path)}", "try again") from None
        finally:
            channel.close(0, 0)


_ERRNO_OF_TEXT = {os.strerror(number).lower(): number for number in errno.errorcode}
_ERRNO_OF_TEXT["i/o error"] = errno.EIO  # bionic's wording


def _file_error(complaint: str, path: str) -> OSError:
    """The OSError for the last line of a program's stderr (`cat: PATH: No such file or directory`)."""
    text = complaint.rpartition(": ")[2].strip().lower()
    number = _ERRNO_OF_TEXT.get(text, errno.EIO)
    return OSError(number, os.strerror(number) if number != errno.EIO else complaint or "I/O error", path)
