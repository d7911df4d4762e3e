"""`doctor`: what this machine allows, and which tracer would be used."""

import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import click

from memleak_android.host.commands.conflicts import refuse_conflicts
from memleak_android.host.commands.doctor_device import capability_lines, device_lines
from memleak_android.host.commands.options import TargetOptions, TracingOptions, takes_options
from memleak_android.host.commands.session_plan import app_request, session_options
from memleak_android.host.commands.target import chosen_machine
from memleak_android.host.console import Invocation
from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.capabilities import bpf_refusal
from memleak_android.host.machine.local.machine import probe_local
from memleak_android.host.machine.local.process import read_text
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.bcc import debian_module
from memleak_android.host.tracers.local.bpf import plan_session
from memleak_android.host.tracers.local.start import choose_tracer


@click.command(short_help="Say what can be measured here, and how.")
@takes_options
@click.pass_obj
def doctor(invocation: Invocation, /, target: TargetOptions, tracing: TracingOptions) -> int:
    """Prints what this machine or a device allows and which tracer would be used; with a target, how it is reached."""
    command = invocation.command
    machine = chosen_machine(command, target, needs_process=False)
    if not machine.is_local:
        for name, value in device_lines(machine, app_request(target), target.pid, tracing.tracer):
            click.echo(f"{name:<22} {value}")
        return 0
    found = probe_local()
    for name, value in _machine_lines(found):
        click.echo(f"{name:<22} {value}")
    if target.pid is not None or command is not None:
        refuse_conflicts(command, target, tracing)
        options = session_options(command, target, tracing)
        for name, value in _target_lines(
            options, choose_tracer(tracing.tracer, options.pid, bpf_refusal(found))
        ):
            click.echo(f"{name:<22} {value}")
    return 0


def _machine_lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "machine", f"{platform.machine()}, kernel {platform.release()}, uid {os.geteuid()}"
    yield from capability_lines(found)
    yield "lockdown", _lockdown()
    for name in ("memleakd", "libmemleak.so"):
        yield name, _binary(name)
    yield "--tracer bcc", _bcc()
    refusal = bpf_refusal(found)
    yield "--pid N", f"by plt ({refusal})" if refusal else "by bpf (--tracer plt works too)"
    yield "-- CMD", f"by preload ({refusal})" if refusal else "by bpf (--tracer preload works too)"


def _lockdown() -> str:
    """The bracketed word of `none [integrity] confidentiality`."""
    try:
        text = read_text("/sys/kernel/security/lockdown")
    except OSError:
        return "none"
    return text.partition("[")[2].partition("]")[0] or "none"


def _binary(name: str) -> str:
    try:
        return str(find_binary(name, local_arch()))
    except TracerError as error:
        return f"no: {error}"


def _bcc() -> str:
    if refusal := debian_module.refusal():
        return f"no: {refusal}; {debian_module.INSTALL}"
    try:
        return f"yes, with the kernel headers of {debian_module.kernel_headers()}"
    except TracerError as error:
        return f"no: {error}"


def _target_lines(options: SessionOptions, tracer: str) -> Iterator[tuple[str, str]]:
    yield "tracer", tracer
    if tracer not in ("bpf", "bcc"):
        return
    plan = plan_session(options)
    yield "allocator", plan.allocator.path
    for probe in plan.probes:
        back = f", return {probe.return_cost}" if probe.return_cost else ""
        moved = probe.entry_offset - probe.function_offset
        yield f"  {probe.function}", f"entry +{moved:#x} {probe.entry_cost}{back}"
    for note in plan.notes:
        yield "  note", note
