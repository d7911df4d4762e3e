"""Selects the tracer for a target on this machine, and starts it."""

from __future__ import annotations

from typing import Literal

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.capabilities import Capabilities, probe_local
from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local import attach, bcc, every_process, kernel, preload
from memleak_android.host.tracers.local.bpf import bpf_session_lines, plan_session

TracerName = Literal["auto", "bpf", "preload", "plt", "inline", "bcc"]
Chosen = Literal["bpf", "preload", "plt", "inline", "bcc"]


def choose_tracer(name: TracerName, options: SessionOptions, capabilities: Capabilities) -> Chosen:
    """`auto` is bpf if allowed, else preload for commands and plt for processes. Raises TracerError."""
    if name != "auto" and name != "bpf":
        return name
    if not capabilities.bpf_refusal:
        return "bpf"
    if name == "auto":
        return "preload" if options.pid is None else "plt"
    subject = f"process {options.pid} cannot be traced" if options.pid else "the bpf tracer cannot run"
    raise TracerError(
        f"{subject}: {capabilities.bpf_refusal}",
        "run as root, or drop --tracer bpf to use the shim"
        if options.pid
        else "run as root, or start the program with --tracer preload -- CMD",
    )


def start_tracer(name: TracerName, options: SessionOptions) -> AgentSession:
    """Raises TracerError or TargetError."""
    if options.kernel:
        return kernel.start(options)
    if options.every_process:
        return every_process.start(options)
    if name != "auto" and name != "bpf":
        return _start(name, options)
    capabilities = probe_local()
    session = _start(choose_tracer(name, options, capabilities), options)
    session.fallback = instead_of_bpf(capabilities.bpf_refusal, options, name)
    return session


def instead_of_bpf(refusal: str, options: SessionOptions, name: TracerName = "auto") -> str:
    """Why the shim is used and not BPF, and what that means for --pairs; "" for BPF. name: of the requested tracer."""
    if not refusal or options.pairs is None or name == "inline":
        return refusal
    return f"{refusal}; of --pairs, the shim traces exported functions that are called through the linker"


def _start(chosen: Chosen, options: SessionOptions) -> AgentSession:
    if chosen == "bpf":
        return _start_bpf(options)
    if chosen == "bcc":
        return bcc.start(options)
    if chosen == "preload":
        return preload.start(options)
    return attach.start(options, chosen)


def _start_bpf(options: SessionOptions) -> AgentSession:
    agent = find_binary("memleakd", local_arch())
    plan = plan_session(options)
    lines = bpf_session_lines(options, plan)
    starts_command = options.pid is None
    channel = LocalChannel([str(agent), "bpf"], give_stdio=starts_command)
    session = AgentSession("bpf", channel, [*lines, *([USER_STDIO_LINE] if starts_command else [])])
    session.notes = plan.notes
    session.pairs = plan.pairs
    session.about = plan.about()
    return session
