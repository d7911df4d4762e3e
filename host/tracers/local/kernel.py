"""Sessions that trace the kernel's own allocators."""

import os
from collections.abc import Callable
from enum import IntFlag

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.machine.local.process import check_running
from memleak_android.host.machine.target import Target
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions


class KernelGroup(IntFlag):
    """Bits by enum ml_kernel_group of device/agent/kernel/layout.h."""

    SLAB = 1
    PAGES = 2
    PERCPU = 4


def start(options: SessionOptions) -> AgentSession:
    """Raises TracerError, TargetError."""
    if os.geteuid() != 0:
        raise TracerError("the kernel's allocators can be traced by root only", "run as root")
    if options.pid is not None:
        check_running(options.pid)
    agent = find_binary("memleakd", local_arch())
    starts_command = bool(options.command)
    channel = LocalChannel([str(agent), "kernel"], give_stdio=starts_command)
    stdio = [USER_STDIO_LINE] if starts_command else []
    session = AgentSession("kernel", channel, [*options.kernel_lines(), *stdio])
    session.answer_functions(None)  # those that this kernel lacks come from the agent, as gaps
    return session


def start_on(
    target: Target, agent: str, options: SessionOptions, clean_up: Callable[[], None]
) -> AgentSession:
    """On a device, with root. agent: memleakd there."""
    channel = target.open_agent([agent, "kernel"], as_root=True)
    session = AgentSession("kernel", channel, options.kernel_lines(), clean_up=clean_up)
    session.answer_functions(None)
    if options.pid is not None:
        session.target = {"pid": options.pid, "whole_machine": False}
    return session
