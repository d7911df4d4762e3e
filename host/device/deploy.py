"""Our files on a device: in a folder of their own, which a keeper on the device removes when we are gone.

What a device that lost its power has kept goes at our next visit.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from memleak_android.host.device.keeper import Keeper, KeeperFailed
from memleak_android.host.device.parse import printable
from memleak_android.host.device.target import Target
from memleak_android.host.errors import DeviceError

SHELL_FOLDER = "/data/local/tmp"  # where the user shell may write and execute; adbd names it in TMPDIR
_PREFIX = "memleak-android"
_COPY_S = 120.0

# $1: run-as, which has begun in the app's own folder, or "". $2: our random word, which also tells a keeper by its
# command line (tr: toybox's grep reads no line beyond a NUL). Its process id is in the folder's name: a folder whose
# keeper is gone is left over. The folder lets others pass (the app that opens the shim) but not look.
_MAKE = f"""
[ -n "$1" ] || cd "${{TMPDIR:-{SHELL_FOLDER}}}" || exit 1
for old in {_PREFIX}-*-*; do
  [ -d "$old" ] || continue
  pid=${{old#{_PREFIX}-}}; word=${{pid#*-}}; pid=${{pid%%-*}}
  {{ tr '\\0' ' ' <"/proc/$pid/cmdline" | grep -q "$word"; }} 2>/dev/null || rm -rf "$old"
done
name={_PREFIX}-$$-$2
mkdir -m 711 "$name" || exit 1
answer=$PWD/$name
"""
_REMOVE = 'rm -rf "$name"'
_COPY = 'cat >"$1" && chmod 755 "$1" && wc -c <"$1"'


class AdbDeployment:
    """Implements Deployment. Raises DeviceError where the files cannot be brought there (no room, not allowed)."""

    def __init__(self, device: Target, files: Mapping[str, Path], run_as: str = "") -> None:
        self._device, self._run_as = device, run_as
        try:
            self._keeper = Keeper(device, _MAKE, _REMOVE, [run_as, secrets.token_hex(8)], run_as=run_as)
        except KeeperFailed as error:
            place = f"the folder of {run_as}" if run_as else SHELL_FOLDER
            raise DeviceError(
                f"{device.name}: nothing can be put into {place}: {error.reason}", "make room there"
            ) from None
        self.folder = self._keeper.answer
        try:
            self.paths: Mapping[str, str] = {name: self._copy(name, path) for name, path in files.items()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Returns when the folder is gone, or soon where the device no longer answers: then it goes by itself."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
