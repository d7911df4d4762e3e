"""The preload tracer: starts a command with the shim before its own libraries. Needs no rights."""

from __future__ import annotations

import os
from urllib.parse import quote

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.machine.local.loader import load_order, resolve_command
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import (
    PairPlan,
    PairPlanner,
    ProbedFile,
    SessionOptions,
    pair_lines,
    session_lines,
)


def start(options: SessionOptions) -> AgentSession:
    if options.pid is not None:
        raise TracerError(
            f"--tracer preload cannot attach to process {options.pid}", "start the program with -- CMD"
        )
    if options.object or options.symbols_prefix:
        raise TracerError(
            "-O and --symbols-prefix need the bpf tracer: the shim is found by the functions' own names",
            "run as root",
        )
    _check_word_size(options.command[0])
    arch = local_arch()
    agent, shim = find_binary("memleakd", arch), find_binary("libmemleak.so", arch)
    pairs = _plan_pairs(options, options.pairs) if options.pairs else None
    lines = [
        *session_lines(options),
        f"shim {quote(os.fsencode(shim), safe='/')}",
        *pair_lines(options, pairs),
    ]
    channel = LocalChannel([str(agent), "preload"], give_stdio=True)
    session = AgentSession("preload", channel, [*lines, USER_STDIO_LINE])
    session.pairs = pairs
    return session


def _plan_pairs(options: SessionOptions, planner: PairPlanner) -> PairPlan:
    loaded = load_order(resolve_command(options.command[0], os.environ), os.environ)
    return planner.plan([ProbedFile(0, one.path, one.open_path) for one in loaded], by="slots")


def _check_word_size(command: str) -> None:
    """Raises TargetError for a 32-bit program: its linker would run it without the shim."""
    try:
        elf = ElfFile(resolve_command(command, os.environ))
    except (OSError, TargetError):
        return  # the agent will report why it cannot be started
    if not elf.is_64_bit:
        raise TargetError(f"{elf.path} is 32-bit, which cannot be traced", "use a 64-bit build of it")
