"""Plans inline hooks for the allocator of a device's process, from copies of its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.target import AppUser, Target
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.inline.heap import InlineHooks, plan_inline
from memleak_android.host.tracers.inline.reservation import Reservation, reserve_command, reserved
from memleak_android.unwind.maps import Mapping

_DEFAULT_OBJECTS = ("libc.so", "libc.so.6")


@dataclass(frozen=True, slots=True)
class RemoteHooked:
    """pid: on the device. user: the app that owns the process, None: use root if possible."""

    target: Target
    pid: int
    agent: str
    shim: LoadedObject
    user: AppUser | None

    def mappings(self) -> Sequence[Mapping]:
        return parse_maps(self._read("maps"))

    def status(self) -> str:
        return self._read("status")

    def reserve(self, near: int) -> Reservation:
        answer = self.target.run(
            reserve_command(self.agent, self.pid, self.shim.path, near),
            as_root=self._as_root,
            run_as=self.user,
        )
        return reserved(
            self.pid, answer.code, answer.out.decode(errors="replace"), answer.err.decode(errors="replace")
        )

    def pull(self, path: str, into: Path) -> LoadedObject:
        """A copy of one of its files. Raises TargetError."""
        copy = into / os.path.basename(path)
        try:
            self.target.pull(path, copy, as_root=self._as_root, run_as=self.user)
        except OSError as error:
            raise TargetError(f"{path} could not be pulled: {error.strerror}", "run as root") from None
        return LoadedObject(path, os.fspath(copy))

    @property
    def _as_root(self) -> bool:
        return self.user is None and self.target.has_root

    def _read(self, name: str) -> str:
        path = f"/proc/{self.pid}/{name}"
        try:
            text = self.target.read_file(path, as_root=self._as_root, run_as=self.user)
        except OSError as error:
            raise TargetError(
                f"{path} cannot be read: {error.strerror}", "use --tracer bpf as root"
            ) from None
        return text.decode(errors="surrogateescape")


def plan_remote_inline(process: RemoteHooked, options: SessionOptions, folder: Path) -> InlineHooks:
    """folder: for the copy of the allocator's file. Raises TargetError, DeviceError."""
    paths = dict.fromkeys(
        one.path for one in process.mappings() if one.is_executable and one.path.startswith("/")
    )
    wanted = (options.object,) if options.object else _DEFAULT_OBJECTS
    for path in paths:
        name = os.path.basename(path)
        if not {path, name, name.partition(".so")[0]}.isdisjoint(wanted):
            return plan_inline(process, process.pull(path, folder), options)
    raise TargetError(
        f"no object named {wanted[0]} in process {process.pid}",
        f"name the file with the allocator by --object: {', '.join(map(os.path.basename, paths))}"[:400],
    )
