"""`doctor`: what this machine allows, and which tracer would be used."""

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import click

from memleak_android.host.commands.conflicts import refuse_conflicts
from memleak_android.host.commands.options import TargetOptions, TracingOptions, takes_options
from memleak_android.host.commands.session_plan import app_request, session_options
from memleak_android.host.commands.target import chosen_machine
from memleak_android.host.console import Invocation, one_line
from memleak_android.host.errors import MemleakError, TracerError
from memleak_android.host.machine.adb.app import App, find_app, lacks_wrap_script, running_processes
from memleak_android.host.machine.adb.facts import DeviceFacts, read_facts
from memleak_android.host.machine.adb.process import RemoteProcess
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.capabilities import bpf_refusal, probe_agent
from memleak_android.host.machine.local.machine import probe_local
from memleak_android.host.machine.local.process import read_text
from memleak_android.host.machine.target import Target
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.android.device import AppRequest
from memleak_android.host.tracers.android.route import Situation, bpf_route, choose_route, routes
from memleak_android.host.tracers.android.wrap import app_arch, wrap_script
from memleak_android.host.tracers.bcc import debian_module
from memleak_android.host.tracers.local.bpf import plan_session
from memleak_android.host.tracers.local.start import TracerName, choose_tracer


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


Line = tuple[str, str]
_CAPABILITIES = (
    ("load BPF programs", "bpf"),
    ("place uprobes", "uprobe_pmu"),
    ("BPF for uprobes", "bpf_uprobe_programs"),
    ("ring buffer", "bpf_ring_buffer"),
    ("mappable arrays", "bpf_mappable_array"),
    ("read user memory", "read_user_memory"),
    ("attach cookies", "attach_cookie"),
    ("follow mappings", "sideband"),
)


def device_lines(
    target: Target, request: AppRequest | None, pid: int | None, tracer: TracerName
) -> Iterator[Line]:
    """Names and values. Raises DeviceError, and TargetError if the app or the process does not exist."""
    facts = read_facts(target)
    yield from _machine(target, facts)
    found = _probe(target)
    if isinstance(found, TracerError):
        yield "agent", f"no: {found}"
    else:
        yield "agent", f"memleakd {one_line(str(found.get('agent', '')))}, runs there"
        yield from capability_lines(found)
        yield "follow forks", "yes" if found.get("fork_events") else "no"
        yield "page size", f"{found.get('page_bytes', 'unknown')} bytes"
    refusal = str(found) if isinstance(found, TracerError) else bpf_refusal(found)
    app = find_app(target, request.package, request.user) if request else None
    is_64_bit = target.arch != "arm32"
    if app is not None:
        yield from _app(target, app)
        is_64_bit = app_arch(target, app) != "arm32"
    if pid is not None:
        process = RemoteProcess.open(target, pid)
        yield "process", f"{pid} {process.name}, uid {process.uid}, {'64' if process.is_64_bit else '32'}-bit"
        is_64_bit = process.is_64_bit
    without = app is not None and lacks_wrap_script(target, app)
    situation = Situation(target.name, target.has_root, refusal, is_64_bit, app, facts.api_level, without)
    yield from _route(situation, tracer, may_restart=bool(request and request.launch))
    if app is not None and not app.run_as_refusal:
        yield (
            "wrap.sh",
            "without root: put this into the app as lib/ABI/wrap.sh, debuggable, libraries extracted",
        )
        for line in wrap_script(app.package).splitlines():
            yield "", line


def _machine(target: Target, facts: DeviceFacts) -> Iterator[Line]:
    level = f"API level {facts.api_level}" if facts.api_level else "API level unknown: is it Android?"
    build = [f"Android {facts.release}"] if facts.release else []
    build += [level, *([facts.build_type] if facts.build_type else [])]
    yield "device", f"{facts.model or 'unnamed'} ({one_line(target.serial)}), {', '.join(build)}"
    yield "kernel", f"{facts.kernel}, {facts.machine}"
    yield "ABIs", ", ".join(facts.abis) or "unknown"
    route = getattr(getattr(target, "root_route", None), "value", "")
    yield (
        "root",
        f"yes{f' ({route})' if route else ''}" if target.has_root else f"no (shell is uid {facts.uid})",
    )
    yield "SELinux", facts.selinux or "unknown"
    if facts.machine == "aarch64":
        tags = (
            "allocators may tag pointers; tags are removed" if facts.is_tagging else "pointers are not tagged"
        )
        yield "memory tags", f"{'MTE' if facts.has_mte else 'no MTE'}, top byte ignored: {tags}"
        yield "signed returns", "PAC" if facts.has_pac else "no PAC"


def _probe(target: Target) -> Mapping[str, Any] | TracerError:
    try:
        with target.deploy({"memleakd": find_binary("memleakd", target.arch)}) as deployed:
            return probe_agent(target, deployed.paths["memleakd"])
    except TracerError as error:
        return error


def capability_lines(found: Mapping[str, Any]) -> Iterator[Line]:
    """found: of probe_agent()."""
    errors: Mapping[str, str] = found.get("errors", {})
    for label, name in _CAPABILITIES:
        yield label, "yes" if found.get(name) else f"no: {errors[name]}" if name in errors else "no"
    yield "kernel BTF", "yes" if found.get("kernel_btf") else "no (not needed for programs)"


def _app(target: Target, app: App) -> Iterator[Line]:
    traits = ["debuggable" if app.is_debuggable else "not debuggable"]
    traits += ["profileable by shell"] if app.is_profileable else []
    yield "app", f"{app.label}, uid {app.uid if app.uid is not None else 'unknown'}, {', '.join(traits)}"
    yield "app's ABI", app.abi or f"none (no native code): {app_arch(target, app)}"
    yield "run-as", f"no: {app.run_as_refusal}" if app.run_as_refusal else "yes"
    processes = running_processes(target, app)
    if not processes:
        yield "processes", "none is running"
    for process in processes[:20]:
        yield "process", f"{process.pid} {one_line(process.name)}{_word_size(target, process.pid)}"


def _word_size(target: Target, pid: int) -> str:
    try:
        return ", 64-bit" if RemoteProcess.open(target, pid).is_64_bit else ", 32-bit"
    except MemleakError:
        return ""


def _route(situation: Situation, tracer: TracerName, *, may_restart: bool) -> Iterator[Line]:
    for route in routes(situation):
        if situation.app is not None or route.name == "bpf":
            yield f"by {route.name}", f"closed: {route.refusal}" if route.refusal else _open(route.needs)
    try:
        yield "route", choose_route(tracer, situation, may_restart=may_restart).name
    except TracerError as error:
        yield "route", f"none: {error}"
    refusal = bpf_route(replace(situation, is_64_bit=True)).refusal
    yield (
        "-- CMD",
        f"by the shim, with the rights of the shell (bpf: {refusal})" if refusal else "by bpf, as root",
    )


def _open(needs: str) -> str:
    return f"open ({needs})" if needs else "open"
