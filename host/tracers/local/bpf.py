"""Plans a BPF session on this machine, and its configuration lines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from memleak_android.host.machine.local.loader import load_order, resolve_command
from memleak_android.host.machine.local.process import LoadedObject, LocalProcess
from memleak_android.host.tracers.agent.session_options import (
    PairPlan,
    Probe,
    ProbedFile,
    SessionOptions,
    session_lines,
)
from memleak_android.host.tracers.probes.allocator import (
    check_runs_here,
    find_allocator,
    find_region_functions,
    plan_probes,
    plan_region_probes,
    probe_lines,
)

ONLY_PAIRS = "only what --pairs names is traced"


@dataclass(frozen=True, slots=True)
class BpfPlan:
    """The probes of a session. notes: for `doctor` and -v, one for each probe and each function without one."""

    allocator: LoadedObject
    probes: tuple[Probe, ...]
    notes: tuple[str, ...]
    pairs: PairPlan | None = None

    def about(self) -> dict[str, Any]:
        """Facts for the recording. allocator: "" if only --pairs is traced."""
        probes = [asdict(probe) for probe in self.probes]
        return {"allocator": self.allocator.path if probes else "", "probes": probes}


def plan_session(options: SessionOptions, environment: Mapping[str, str] | None = None) -> BpfPlan:
    """Finds the allocator of options.pid, or of options.command before it runs, and plans its probes.

    environment: that of the command (the caller's own by default). Raises TargetError.
    """
    objects = _objects(options, os.environ if environment is None else environment)
    pairs = options.pairs.plan(probed_files(options.pid or 0, objects)) if options.pairs else None
    if options.pairs and not options.pairs.with_heap:
        check_runs_here(objects[0].open_path)
        return BpfPlan(objects[0], (), (ONLY_PAIRS,), pairs)
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
    return BpfPlan(allocator, tuple(probes), tuple(notes), pairs)


def bpf_session_lines(options: SessionOptions, plan: BpfPlan) -> list[str]:
    """The agent's configuration, without the final `start`."""
    path = [
        f"perf_event_path {int(options.perf_events)}",
        f"without_multi {int(options.without_multi)}",
        f"adaptive {int(options.adaptive)}",
        f"evidence_after_ns {options.evidence_after_ns}",
    ]
    pairs = plan.pairs.lines if plan.pairs else ()
    return [*session_lines(options), *path, *probe_lines(plan.probes), *pairs]


def probed_files(pid: int, objects: Sequence[LoadedObject]) -> list[ProbedFile]:
    """Files of a process of this machine, 0 = of a command."""
    return [ProbedFile(pid, one.path, one.open_path) for one in objects]


def _objects(options: SessionOptions, environment: Mapping[str, str]) -> list[LoadedObject]:
    if options.pid is not None:
        return LocalProcess.open(options.pid).loaded_objects()
    return load_order(resolve_command(options.command[0], environment), environment)
