"""Our files on a device: in a folder of their own that a keeper on the device removes when we are gone.

The keeper is a shell that makes the folder, waits for the end of its input and removes it. adbd closes that input when
the connection ends, for whatever reason: close(), an error, Ctrl-C, SIGKILL of this program, an unplugged cable, a
restart of adbd. Only a device that loses its power keeps the folder, until our next visit.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from memleak_android.host.device.adb_channel import AdbChannel
from memleak_android.host.device.parse import printable
from memleak_android.host.device.target import Answer
from memleak_android.host.errors import DeviceError

SHELL_FOLDER = "/data/local/tmp"  # where the user shell may write and execute; adbd names it in TMPDIR
_PREFIX = "memleak-android"
_READY_S = 10.0
_COPY_S = 120.0
_REMOVED_S = 5.0

# $1: run-as, which has begun in the app's own folder, or "". $2: our random word, which also tells a keeper by its
# command line. Its process id is in the folder's name: a folder whose keeper is gone is left over from
# a device that lost its power (tr: toybox's grep reads no line beyond a NUL). The folder lets others pass (the app that opens the shim) but not look.
_KEEPER = f"""
trap '' HUP INT TERM PIPE
umask 022
[ -n "$1" ] || cd "${{TMPDIR:-{SHELL_FOLDER}}}" || exit 1
for old in {_PREFIX}-*-*; do
  [ -d "$old" ] || continue
  pid=${{old#{_PREFIX}-}}; word=${{pid#*-}}; pid=${{pid%%-*}}
  {{ tr '\\0' ' ' <"/proc/$pid/cmdline" | grep -q "$word"; }} 2>/dev/null || rm -rf "$old"
done
name={_PREFIX}-$$-$2
mkdir -m 711 "$name" || exit 1
echo "ready $PWD/$name"
cat >/dev/null
rm -rf "$name"
"""
_READY = re.compile(rb"ready (/[^\r\n]*)\r?\n")
_COPY = 'cat >"$1" && chmod 755 "$1" && wc -c <"$1"'


class Runner(Protocol):
    """What of a device is needed here."""

    @property
    def name(self) -> str: ...

    def run(
        self, argv: list[str], *, run_as: str = "", stdin: bytes = b"", timeout_s: float = _COPY_S
    ) -> Answer: ...

    def open_agent(self, argv: list[str], *, run_as: str = "") -> AdbChannel: ...


class AdbDeployment:
    """Implements Deployment. Raises DeviceError where the files cannot be brought there (no room, not allowed)."""

    def __init__(self, device: Runner, files: Mapping[str, Path], run_as: str = "") -> None:
        self._device, self._run_as = device, run_as
        keeper = ["sh", "-c", _KEEPER, "sh", run_as, secrets.token_hex(8)]
        self._keeper = device.open_agent(keeper, run_as=run_as)
        try:
            self.folder = self._await_ready()
            self.paths: Mapping[str, str] = {name: self._copy(name, path) for name, path in files.items()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Returns when the folder is gone, or soon where the device no longer answers: then it goes by itself."""
        self._keeper.close(_REMOVED_S, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_ready(self) -> str:
        said, deadline = bytearray(), time.monotonic() + _READY_S
        while time.monotonic() < deadline and len(said) < 1 << 16:
            piece = self._keeper.exchange(bytearray(), 0.1)
            said += piece or b""
            found = _READY.search(said)
            if found:
                return found[1].decode("utf-8", "surrogateescape")
            if piece is None:
                break
        reason = self._keeper.last_words() or "it does not answer"
        place = f"the folder of {self._run_as}" if self._run_as else SHELL_FOLDER
        raise DeviceError(
            f"{self._device.name}: nothing can be put into {place}: {reason}", "make room there"
        )

    def _copy(self, name: str, path: Path) -> str:
        there, data = f"{self.folder}/{name}", path.read_bytes()
        answer = self._device.run(
            ["sh", "-c", _COPY, "sh", there], run_as=self._run_as, stdin=data, timeout_s=_COPY_S
        )
        if answer.code or answer.out.split() != [str(len(data)).encode()]:
            reason = answer.complaint.rpartition(": ")[2] or f"{printable(answer.out.decode())} bytes arrived"
            raise DeviceError(
                f"{name} could not be copied to {self._device.name}: {reason}", "make room on the device"
            )
        return there
