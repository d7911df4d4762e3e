"""Brings the shim into a running process by ptrace, without root for a process of the same user."""

import os
from typing import Literal
from urllib.parse import quote

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.inline.heap import local_allocator
from memleak_android.host.tracers.inline.pairs import plan_session
from memleak_android.host.tracers.inline.target import LocalHooked
from memleak_android.host.tracers.local.bpf import probed_files

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
    if hook == "inline":
        hooked = LocalHooked(process, agent, find_binary("libmemleak.so", local_arch()))
        return _start_inline(options, process, hooked)
    files = probed_files(process.pid, process.loaded_objects())
    pairs = options.pairs.plan(files, by="slots") if options.pairs else None
    lines = [*attach_lines(options.lines(), hook), *options.pair_lines(pairs)]
    session = AgentSession(hook, LocalChannel([str(agent), "preload"]), lines, joins=True)
    session.answer_functions(pairs)
    return session


def _start_inline(options: SessionOptions, process: LocalProcess, hooked: LocalHooked) -> AgentSession:
    choice = options.allocator
    plan = plan_session(
        hooked,
        options.pairs,
        choice,
        lambda: local_allocator(process.loaded_objects(), choice),
        lambda planner, patcher: planner.plan(
            probed_files(process.pid, process.loaded_objects()), by="patches", patcher=patcher
        ),
    )
    lines = [*attach_lines(options.lines(), "inline"), *plan.lines, *options.pair_lines(plan.pairs)]
    channel = LocalChannel([str(hooked.agent), "preload"])
    session = AgentSession("inline", channel, lines, joins=True)
    session.notes = plan.notes
    session.about = {"allocator": plan.allocator} if plan.allocator else {}
    session.stops = plan.stops
    session.answer_functions(plan.pairs, plan.unplaced)
    return session


def attach_lines(lines: list[str], hook: HookName) -> list[str]:
    """The agent's configuration, without the final `start`."""
    shim = find_binary("libmemleak.so", local_arch())
    return [*lines, f"shim {quote(os.fsencode(shim), safe='/')}", f"hook {hook}"]
