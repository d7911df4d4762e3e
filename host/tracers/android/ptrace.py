"""Brings the shim into a running process on a device by ptrace."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import numpy as np

from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.machine.target import Target
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import (
    PairPlan,
    SessionOptions,
    pair_lines,
    session_lines,
)
from memleak_android.host.tracers.android.inline import RemoteHooked, plan_remote_inline
from memleak_android.host.tracers.android.wrap import AGENT, SHIM, shim_files
from memleak_android.host.tracers.local.attach import HookName
from memleak_android.host.wire.blocks import STOP


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
            *session_lines(options),
            f"shim {quote(os.fsencode(shim), safe='/')}",
            f"hook {hook}",
            *pair_lines(options, pairs),
        ]
        notes: tuple[str, ...] = ()
        stops = np.empty(0, STOP)
        if hook == "inline":
            loaded = LoadedObject(shim, os.fspath(files[SHIM]))
            process = RemoteHooked(target, options.pid or 0, deployed.paths[AGENT], loaded, user)
            with TemporaryDirectory(prefix="memleak-inline-") as copies:
                hooks = plan_remote_inline(process, options, Path(copies))
            lines, notes, stops = [*lines, *hooks.lines], hooks.notes, hooks.stops
        argv = [deployed.paths[AGENT], "preload"]
        channel = (
            target.open_agent(argv, run_as=user) if user else target.open_agent(argv, as_root=target.has_root)
        )
        session = AgentSession(hook, channel, lines, clean_up=deployed.close)
        session.notes = notes
        session.pairs = pairs
        session.stops = stops
        session.target = {"pid": options.pid, "attached": True}
        undo.pop_all()
    return session
