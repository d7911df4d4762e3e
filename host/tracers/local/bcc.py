"""The tracer `bcc`: our accounting compiled on this machine by Debian's python3-bpfcc."""

from __future__ import annotations

import sys
from dataclasses import asdict

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import local_arch
from memleak_android.host.machine.local.capabilities import probe_local
from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.bcc import debian_module
from memleak_android.host.tracers.local.bpf import bpf_session_lines, plan_session

_ARCH = "x86_64"  # accounting.c records its registers
_COMPILING_S = 240.0


def start(options: SessionOptions) -> AgentSession:
    """Raises TracerError, TargetError."""
    check(options)
    plan = plan_session(options)
    lines, starts_command = bpf_session_lines(options, plan), options.pid is None
    channel = LocalChannel(
        [sys.executable, "-P", "-m", "memleak_android.host.tracers.bcc"], give_stdio=starts_command
    )
    stdio = [USER_STDIO_LINE] if starts_command else []
    session = AgentSession("bcc", channel, [*lines, *stdio], loading_s=_COMPILING_S)
    session.notes = plan.notes
    session.about = {"allocator": plan.allocator.path, "probes": [asdict(probe) for probe in plan.probes]}
    return session


def check(options: SessionOptions) -> None:
    """Raises TracerError for options that this tracer lacks, and if bcc or kernel headers are missing."""
    unable = {
        "--follow": options.follow,
        "--mmap": options.mmap,
        "--trace": options.events,
        "--adaptive": options.adaptive,
        "--evidence-after": options.evidence_after_ns > 0,
        "--extend-stacks": options.extend_stacks,
        "--perf-events": options.perf_events,
        "--pairs": options.pairs is not None,
        "--unwind fp": options.unwind != "cfi",
    }
    for name, is_wanted in unable.items():
        if is_wanted:
            raise TracerError(f"--tracer bcc has no {name}", "use --tracer bpf with it")
    if local_arch() != _ARCH:
        raise TracerError(f"--tracer bcc runs on {_ARCH}, this machine is {local_arch()}", "use --tracer bpf")
    if reason := probe_local().bpf_refusal:
        raise TracerError(f"the bcc tracer cannot run: {reason}", "run as root")
    if reason := debian_module.refusal():
        raise TracerError(reason, debian_module.INSTALL)
    debian_module.kernel_headers()
