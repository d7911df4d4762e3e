"""What the agent is told for a session with BPF probes on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from memleak_android.host.device.loader import load_order, resolve_command
from memleak_android.host.device.local import LoadedObject, LocalProcess
from memleak_android.host.tracers.allocator import (
    FUNCTION_NUMBERS,
    check_runs_here,
    find_allocator,
    find_region_functions,
    plan_probes,
    plan_region_probes,
)
from memleak_android.host.tracers.base import Probe, SessionOptions, probe_line, session_lines
from memleak_android.host.wire import WIRE_VERSION


@dataclass(frozen=True, slots=True)
class BpfPlan:
    """Where the probes of a session go. notes: for `doctor` and -v, one a probe and what could not be probed."""

    allocator: LoadedObject
    probes: tuple[Probe, ...]
    notes: tuple[str, ...]


def plan_session(options: SessionOptions, environment: Mapping[str, str] | None = None) -> BpfPlan:
    """Finds the allocator of options.pid, or of options.command before it runs, and plans its probes.

    environment: that of the command (the caller's own by default). Raises TargetError.
    """
    objects = _objects(options, os.environ if environment is None else environment)
    allocator = find_allocator(objects, options)
    check_runs_here(allocator.open_path)
    probes, notes = plan_probes(allocator.open_path, options)
    if options.mmap and not any(probe.function == "mmap" for probe in probes):
        libc = find_region_functions(objects)
        more, remarks = plan_region_probes(libc.open_path) if libc else ([], ["no mmap found to be probed"])
        probes, notes = probes + more, notes + remarks
    if options.sample_bytes:
        notes = [
            *notes,
            "--sample-bytes changes nothing: BPF counts every allocation and sends each stack once",
        ]
    return BpfPlan(allocator, tuple(probes), tuple(notes))


def bpf_session_lines(options: SessionOptions, plan: BpfPlan) -> list[str]:
    """The agent's configuration, without the final `start`."""
    probes = [probe_line(probe, FUNCTION_NUMBERS[probe.function]) for probe in plan.probes]
    path = [f"perf_event_path {int(options.perf_events)}"]
    return session_lines(options, WIRE_VERSION) + path + probes


def _objects(options: SessionOptions, environment: Mapping[str, str]) -> list[LoadedObject]:
    if options.pid is not None:
        return LocalProcess.open(options.pid).loaded_objects()
    return load_order(resolve_command(options.command[0], environment), environment)
