"""Plans BPF probes for a process on a device, from a pulled copy of its allocator."""

import os
from collections.abc import Sequence
from dataclasses import replace

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.adb.modules import RemoteFiles
from memleak_android.host.machine.adb.process import RemoteObject, RemoteProcess
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.pairs.schema import PairRoute
from memleak_android.host.tracers.agent.session_options import (
    AllocatorChoice,
    PairPlan,
    PairPlanner,
    Probe,
    ProbedFile,
)
from memleak_android.host.tracers.local.bpf import ONLY_PAIRS, BpfPlan
from memleak_android.host.tracers.probes.allocator import plan_probes
from memleak_android.unwind.elf_headers import MACHINE_NAMES


def check_word_size(process: RemoteProcess) -> None:
    """Raises TargetError for a 32-bit process: the kernel refuses probes in it, or they kill it."""
    if process.is_64_bit:
        return
    machine = MACHINE_NAMES.get(process.machine, "32-bit")
    raise TargetError(
        f"process {process.pid} ({process.name}) is 32-bit ({machine}), where the kernel places no uprobes",
        "use --tracer preload, or a 64-bit build of it",
    )


def plan_remote(
    process: RemoteProcess,
    agent: str,
    files: RemoteFiles,
    choice: AllocatorChoice,
    planner: PairPlanner | None,
) -> BpfPlan:
    """Pulls only the file with the allocator. agent: memleakd on the device. Raises TargetError, DeviceError."""
    objects = process.objects(agent, (choice.malloc,))
    pairs = plan_pairs(process, objects, files, planner) if planner else None
    if not choice.is_traced:
        main = objects[0] if objects else None
        return BpfPlan(LoadedObject(main.path if main else "", ""), (), (ONLY_PAIRS,), pairs)
    chosen = _allocator(objects, choice)
    allocator = _pulled(process, chosen, files)
    probes, notes = plan_probes(allocator.open_path, choice)
    return BpfPlan(allocator, tuple(_on_device(probes, process, chosen)), tuple(notes), pairs)


def plan_pairs(
    process: RemoteProcess,
    objects: Sequence[RemoteObject],
    files: RemoteFiles,
    planner: PairPlanner,
    by: PairRoute = "probes",
) -> PairPlan:
    """Pulls only the searched files; all of them for slots, which any file may have."""
    by_file = {ProbedFile(process.pid, item.path, path_of(process.pid, item)): item for item in objects}
    return planner.plan(list(by_file), lambda file: _pulled(process, by_file[file], files).open_path, by)


def path_of(pid: int, item: RemoteObject) -> str:
    """The path of a file through the process, whose mount namespace has it even if the shell's differs."""
    if item.mapping.path != item.path:  # deleted, for example a system library after an update
        return f"/proc/{pid}/map_files/{item.mapping.start:x}-{item.mapping.end:x}"
    return f"/proc/{pid}/root{item.path}"


def _allocator(objects: Sequence[RemoteObject], choice: AllocatorChoice) -> RemoteObject:
    """The object whose malloc the linker binds; for a static program the executable itself."""
    if choice.object is not None:
        return _named(objects, choice.object)
    found = next((item for item in objects if choice.malloc in item.defines), None)
    if found is None and not objects:
        raise TargetError(
            f"no function {choice.malloc} found: the process maps no files", "name the library with --object"
        )
    return found or objects[0]


def _named(objects: Sequence[RemoteObject], name: str) -> RemoteObject:
    for item in objects:
        if name in (item.path, item.name, item.name.partition(".so")[0]):
            return item
    names = ", ".join(item.name for item in objects[:20])
    raise TargetError(f"no object named {name} in the process", f"it has {names}")


def _pulled(process: RemoteProcess, item: RemoteObject, files: RemoteFiles) -> LoadedObject:
    copy = files.needed(process.pid, item.mapping, "its probes cannot be planned without it; run as root")
    return LoadedObject(item.path, os.fspath(copy))


def _on_device(probes: Sequence[Probe], process: RemoteProcess, item: RemoteObject) -> list[Probe]:
    path = path_of(process.pid, item)
    return [replace(probe, path=path, identity=None) for probe in probes]
