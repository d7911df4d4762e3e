"""Files on a device, in a folder that a keeper on the device removes when our connection ends.

A device that lost its power keeps the folder; the next session removes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.keeper import OWN_FOLDER, Keeper, KeeperFailed
from memleak_android.host.machine.target import AppUser, Target

SHELL_FOLDER = "/data/local/tmp"  # the user shell may write and execute here; adbd names it in TMPDIR
_COPY_S = 120.0

# $1: "" = not in the start folder of run-as, which is the app's. $2: our random word.
_MAKE = f"""
[ -n "$1" ] || cd "${{TMPDIR:-{SHELL_FOLDER}}}" || exit 1
word=$2
{OWN_FOLDER}
answer=$PWD/$name
"""
_REMOVE = 'rm -rf "$name"'
_COPY = 'cat >"$1" && chmod 755 "$1" && wc -c <"$1"'


class AdbDeployment(Keeper):
    """Implements Deployment; close() removes the folder. Raises DeviceError if copying fails (no room, not allowed)."""

    def __init__(self, device: Target, files: Mapping[str, Path], run_as: AppUser | None = None) -> None:
        self._device, self._run_as = device, run_as
        try:
            words = [run_as.package if run_as else "", secrets.token_hex(8)]
            super().__init__(device, _MAKE, _REMOVE, words, run_as=run_as)
        except KeeperFailed as error:
            folder = f"the folder of {run_as.package}" if run_as else SHELL_FOLDER
            raise DeviceError(
                f"could not copy files into {folder} on {device.name}: {error.reason}", "make room there"
            ) from None
        self.folder = self.answer
        try:
            self.paths: Mapping[str, str] = {name: self._copy(name, path) for name, path in files.items()}
        except BaseException:
            self.close()
            raise

    def _copy(self, name: str, path: Path) -> str:
        there, data = f"{self.folder}/{name}", path.read_bytes()
        answer = self._device.run(
            ["sh", "-c", _COPY, "sh", there], run_as=self._run_as, stdin=data, timeout_s=_COPY_S
        )
        if answer.code or answer.out.split() != [str(len(data)).encode()]:
            reason = answer.complaint.rpartition(": ")[2] or f"{one_line(answer.out.decode())} bytes arrived"
            raise DeviceError(
                f"{name} could not be copied to {self._device.name}: {reason}", "make room on the device"
            )
        return there
