"""Which tracer measures this target here, and its start."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from memleak_android.host.device.capabilities import Capabilities, probe_local
from memleak_android.host.device.local_channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.errors import TracerError
from memleak_android.host.tracers import preload
from memleak_android.host.tracers.agent import AgentSession
from memleak_android.host.tracers.base import SessionOptions
from memleak_android.host.tracers.bpf import bpf_session_lines, plan_session
from memleak_android.host.tracers.prebuilt import find_binary, local_arch

TracerName = Literal["auto", "bpf", "preload"]


def choose_tracer(
    name: TracerName, options: SessionOptions, capabilities: Capabilities
) -> Literal["bpf", "preload"]:
    """`auto` is bpf where it is allowed, else preload for commands. Raises TracerError."""
    if name == "preload":
        return "preload"
    if not capabilities.bpf_refusal:
        return "bpf"
    if name == "auto" and options.pid is None:
        return "preload"
    subject = f"process {options.pid} cannot be traced" if options.pid else "the bpf tracer cannot run"
    raise TracerError(
        f"{subject}: {capabilities.bpf_refusal}",
        "run as root, or start the program with --tracer preload -- CMD",
    )


def start_tracer(name: TracerName, options: SessionOptions) -> AgentSession:
    """Raises TracerError or TargetError, with the reason and the way out."""
    if name == "preload":
        return preload.start(options)
    capabilities = probe_local()
    if choose_tracer(name, options, capabilities) == "bpf":
        return _start_bpf(options)
    session = preload.start(options)
    session.fallback = capabilities.bpf_refusal
    return session


def _start_bpf(options: SessionOptions) -> AgentSession:
    agent = find_binary("memleakd", local_arch())
    plan = plan_session(options)
    lines = bpf_session_lines(options, plan)
    starts_command = options.pid is None
    channel = LocalChannel([str(agent), "bpf"], give_stdio=starts_command)
    session = AgentSession("bpf", channel, [*lines, *([USER_STDIO_LINE] if starts_command else [])])
    session.notes = plan.notes
    session.about = {"allocator": plan.allocator.path, "probes": [asdict(probe) for probe in plan.probes]}
    return session
