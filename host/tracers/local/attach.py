"""Brings the shim into a running process by ptrace, without root for a process of the same user."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import quote

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import (
    ProbedFile,
    SessionOptions,
    pair_lines,
    session_lines,
)
from memleak_android.host.tracers.inline.heap import local_allocator
from memleak_android.host.tracers.inline.pairs import plan_session
from memleak_android.host.tracers.inline.target import LocalHooked

HookName = Literal["plt", "inline"]


def start(options: SessionOptions, hook: HookName) -> AgentSession:
    """Raises TargetError for an inaccessible process, TracerError for options that hooks do not support.

    The agent reports the process's own refusals (docs/wire-protocol.md, "How a running process is entered").
    """
    if options.pid is None:
        raise TracerError(
            f"--tracer {hook} is for processes that run already",
            "name one by --pid N, or drop --tracer to measure a command from its start",
        )
    if hook == "plt" and (options.object or options.symbols_prefix):
        raise TracerError(
            "-O and --symbols-prefix need the bpf or the inline tracer: slots are found by the functions' own names",
            "use --tracer inline, or run as root",
        )
    process = LocalProcess.open(options.pid)
    agent = find_binary("memleakd", local_arch())
    lines = attach_lines(options, hook)
    if hook == "inline":
        hooked = LocalHooked(process, agent, find_binary("libmemleak.so", local_arch()))
        return _start_inline(options, process, hooked, lines)
    pairs = options.pairs.plan(_files(process), by="slots") if options.pairs else None
    session = AgentSession(hook, LocalChannel([str(agent), "preload"]), [*lines, *pair_lines(options, pairs)])
    session.pairs = pairs
    return session


def _start_inline(
    options: SessionOptions, process: LocalProcess, hooked: LocalHooked, lines: list[str]
) -> AgentSession:
    plan = plan_session(
        hooked,
        options,
        lambda: local_allocator(process.loaded_objects(), options),
        lambda planner, patcher: planner.plan(_files(process), by="patches", patcher=patcher),
    )
    channel = LocalChannel([str(hooked.agent), "preload"])
    session = AgentSession("inline", channel, [*lines, *plan.lines])
    session.notes = plan.notes
    session.about = {"allocator": plan.allocator} if plan.allocator else {}
    session.stops = plan.stops
    session.pairs = plan.pairs
    return session


def _files(process: LocalProcess) -> list[ProbedFile]:
    return [ProbedFile(process.pid, one.path, one.open_path) for one in process.loaded_objects()]


def attach_lines(options: SessionOptions, hook: HookName) -> list[str]:
    """The agent's configuration, without the final `start`."""
    shim = find_binary("libmemleak.so", local_arch())
    return [*session_lines(options), f"shim {quote(os.fsencode(shim), safe='/')}", f"hook {hook}"]
