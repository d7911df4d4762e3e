"""Plans a BPF session on this machine, and its configuration lines."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from memleak_android.host.machine.local.loader import command_objects
from memleak_android.host.machine.local.process import LoadedObject, LocalProcess
from memleak_android.host.tracers.agent.session_options import (
    AllocatorChoice,
    PairPlan,
    Probe,
    ProbedFile,
    SessionOptions,
)
from memleak_android.host.tracers.probes.allocator import (
    check_runs_here,
    find_allocator,
    lends_memory,
    plan_probes,
    probe_lines,
    unprobed_functions,
)

ONLY_PAIRS = "only what --pairs names is traced"


@dataclass(frozen=True, slots=True)
class BpfPlan:
    """The probes of a session.

    notes: for `doctor` and -v, one for each probe and each function without one.
    lends_memory: whether the program's children may run in its memory and call the allocator there.
    """

    allocator: LoadedObject
    probes: tuple[Probe, ...]
    notes: tuple[str, ...]
    pairs: PairPlan | None = None
    lends_memory: bool = False

    @property
    def unplaced(self) -> list[str]:
        """Sentences about functions of the heap that have no probe."""
        return unprobed_functions(self.notes)

    def about(self) -> dict[str, Any]:
        """Facts for the recording. allocator: "" if only --pairs is traced."""
        probes = [asdict(probe) for probe in self.probes]
        return {"allocator": self.allocator.path if probes else "", "probes": probes}

    def lines(self) -> list[str]:
        """The agent's configuration, behind SessionOptions.bpf_lines() and without the final `start`."""
        return [
            *probe_lines(self.probes),
            *(self.pairs.lines if self.pairs else ()),
            f"lends_memory {int(self.lends_memory)}",
        ]


def plan_session(options: SessionOptions, environment: Mapping[str, str] | None = None) -> BpfPlan:
    """Finds the allocator of options.pid, or of options.command before it runs, and plans its probes.

    environment: that of the command (the caller's own by default). Raises TargetError.
    """
    objects = _objects(options.pid, options.command, os.environ if environment is None else environment)
    pairs = options.pairs.plan(probed_files(options.pid or 0, objects)) if options.pairs else None
    plan = plan_objects(objects, options.allocator, pairs, is_local=True)
    if not options.sample_bytes or not plan.probes:
        return plan
    remark = "--sample-bytes changes nothing: BPF counts every allocation and sends each stack once"
    return replace(plan, notes=(*plan.notes, remark))


def plan_objects(
    objects: Sequence[LoadedObject], choice: AllocatorChoice, pairs: PairPlan | None, *, is_local: bool
) -> BpfPlan:
    """Plans the probes of a program's objects, in search order.

    is_local: they belong to this machine, not to a device whose files were copied to open_path.
    """
    if not choice.is_traced:
        if is_local:
            check_runs_here(objects[0].open_path)
        return BpfPlan(objects[0], (), (ONLY_PAIRS,), pairs, lends_memory(objects))
    allocator = find_allocator(objects, choice)
    if is_local:
        check_runs_here(allocator.open_path)
    found, notes = plan_probes(allocator.open_path, choice)
    probes = (probe if is_local else replace(probe, path=allocator.path, identity=None) for probe in found)
    return BpfPlan(allocator, tuple(probes), tuple(notes), pairs, lends_memory(objects))


def probed_files(pid: int, objects: Sequence[LoadedObject]) -> list[ProbedFile]:
    """Files of a process of this machine, 0 = of a command."""
    return [ProbedFile(pid, one.path, one.open_path) for one in objects]


def _objects(pid: int | None, command: Sequence[str], environment: Mapping[str, str]) -> list[LoadedObject]:
    if pid is not None:
        return LocalProcess.open(pid).loaded_objects()
    return command_objects(command, environment)
