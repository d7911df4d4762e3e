"""`doctor`: what this machine allows, and which tracer would be used."""

from collections.abc import Iterator

import click

from memleak_android.host.commands.conflicts import refuse_conflicts
from memleak_android.host.commands.doctor_device import device_lines
from memleak_android.host.commands.options import TargetOptions, TracingOptions, takes_options
from memleak_android.host.commands.session_plan import app_request, session_options
from memleak_android.host.commands.target import chosen_machine
from memleak_android.host.console import Invocation
from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.capabilities import Capabilities, probe_local
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
    capabilities = probe_local()
    for name, value in _machine_lines(capabilities):
        click.echo(f"{name:<22} {value}")
    if target.pid is not None or command is not None:
        refuse_conflicts(command, target, tracing)
        options = session_options(command, target, tracing)
        for name, value in _target_lines(options, choose_tracer(tracing.tracer, options.pid, capabilities)):
            click.echo(f"{name:<22} {value}")
    return 0


def _machine_lines(found: Capabilities) -> Iterator[tuple[str, str]]:
    yield "machine", f"{found.machine}, kernel {found.kernel}, uid {found.uid}"
    for name, error in (
        ("load BPF programs", found.bpf_error),
        ("place uprobes", found.uprobe_error),
        ("ring buffer", found.ring_buffer_error),
        ("mappable arrays", found.mappable_array_error),
        ("read user memory", found.probe_read_user_error),
        ("attach cookies", found.attach_cookie_error),
    ):
        yield name, f"no: {error}" if error else "yes"
    yield "kernel BTF", "yes" if found.has_btf else "no (not needed for programs)"
    yield "lockdown", found.lockdown or "none"
    for name in ("memleakd", "libmemleak.so"):
        yield name, _binary(name)
    yield "--tracer bcc", _bcc()
    refusal = found.bpf_refusal
    yield "--pid N", f"by plt ({refusal})" if refusal else "by bpf (--tracer plt works too)"
    yield "-- CMD", f"by preload ({refusal})" if refusal else "by bpf (--tracer preload works too)"


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
