"""Plans a BPF session on this machine, and its configuration lines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
    plan = plan_objects(objects, options, pairs, is_local=True)
    if not options.sample_bytes or not plan.probes:
        return plan
    remark = "--sample-bytes changes nothing: BPF counts every allocation and sends each stack once"
    return replace(plan, notes=(*plan.notes, remark))


def plan_objects(
    objects: Sequence[LoadedObject], options: SessionOptions, pairs: PairPlan | None, *, is_local: bool
) -> BpfPlan:
    """Plans the probes of a program's objects, in search order.

    is_local: they belong to this machine, not to a device whose files were copied to open_path.
    """
    if options.pairs and not options.pairs.with_heap:
        if is_local:
            check_runs_here(objects[0].open_path)
        return BpfPlan(objects[0], (), (ONLY_PAIRS,), pairs)
    allocator = find_allocator(objects, options)
    if is_local:
        check_runs_here(allocator.open_path)
    planned = [(allocator, *plan_probes(allocator.open_path, options))]
    if options.mmap and not any(probe.function == "mmap" for probe in planned[0][1]):
        libc = find_region_functions(objects)
        regions = plan_region_probes(libc.open_path) if libc else ([], ["no mmap found to be probed"])
        planned.append((libc or allocator, *regions))
    probes = [
        probe if is_local else replace(probe, path=item.path) for item, found, _ in planned for probe in found
    ]
    return BpfPlan(allocator, tuple(probes), tuple(note for *_, notes in planned for note in notes), pairs)


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
