"""Brings the shim into a running process on a device by ptrace; inline hooks are planned from copies of its files."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.binaries import AGENT, SHIM
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.target import AppUser, Target
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import AllocatorChoice, PairPlan, SessionOptions
from memleak_android.host.tracers.android.wrap import shim_files
from memleak_android.host.tracers.inline.heap import InlineHooks, plan_inline
from memleak_android.host.tracers.inline.target import Reservation, reserve_command, reserved
from memleak_android.host.tracers.local.attach import HookName
from memleak_android.host.wire.blocks import STOP
from memleak_android.unwind.file_writing import temporary_folder
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


def plan_remote_inline(process: RemoteHooked, choice: AllocatorChoice, folder: Path) -> InlineHooks:
    """folder: for the copy of the allocator's file. Raises TargetError, DeviceError."""
    paths = dict.fromkeys(
        one.path for one in process.mappings() if one.is_executable and one.path.startswith("/")
    )
    wanted = (choice.object,) if choice.object else _DEFAULT_OBJECTS
    for path in paths:
        name = os.path.basename(path)
        if not {path, name, name.partition(".so")[0]}.isdisjoint(wanted):
            return plan_inline(process, process.pull(path, folder), choice)
    raise TargetError(
        f"no object named {wanted[0]} in process {process.pid}",
        f"name the file with the allocator by --object: {', '.join(map(os.path.basename, paths))}"[:400],
    )


def start(
    target: Target,
    options: SessionOptions,
    app: App | None,
    hook: HookName,
    pairs: PairPlan | None = None,
    *,
    arch: str,
) -> AgentSession:
    """Attaches to the process options.pid.

    pairs: the part of options.pairs that slots can trace.
    app: the owner. Everything then runs as the app, and the shim is in its folder (it may not load code from
    /data/local/tmp). Otherwise as root if possible. Raises DeviceError.
    """
    with ExitStack() as undo:
        files = shim_files(arch)
        user = app.as_user if app else None
        deployed = undo.enter_context(target.deploy(files, run_as=user))
        shim = deployed.paths[SHIM]
        lines = [
            *options.lines(),
            f"shim {quote(os.fsencode(shim), safe='/')}",
            f"hook {hook}",
            *options.pair_lines(pairs),
        ]
        notes: tuple[str, ...] = ()
        unplaced: tuple[str, ...] = ()
        stops = np.empty(0, STOP)
        if hook == "inline":
            loaded = LoadedObject(shim, os.fspath(files[SHIM]))
            process = RemoteHooked(target, options.pid or 0, deployed.paths[AGENT], loaded, user)
            with temporary_folder("memleak-inline-") as copies:
                hooks = plan_remote_inline(process, options.allocator, Path(copies))
            lines, notes, stops = [*lines, *hooks.lines], hooks.notes, hooks.stops
            unplaced = hooks.unplaced
        argv = [deployed.paths[AGENT], "preload"]
        channel = (
            target.open_agent(argv, run_as=user) if user else target.open_agent(argv, as_root=target.has_root)
        )
        session = AgentSession(hook, channel, lines, clean_up=deployed.close, joins=True)
        session.notes = notes
        session.answer_functions(pairs, unplaced)
        session.stops = stops
        session.target = {"pid": options.pid, "attached": True}
        undo.pop_all()
    return session
