"""Where the BPF probes of a device's process go: found in a copy of its allocator, placed in the file itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from memleak_android.host.device.elf_file import MACHINE_NAMES
from memleak_android.host.device.local import LoadedObject
from memleak_android.host.device.remote_modules import RemoteFiles
from memleak_android.host.device.remote_process import RemoteObject, RemoteProcess
from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.allocator import plan_probes, plan_region_probes
from memleak_android.host.tracers.base import Probe, SessionOptions
from memleak_android.host.tracers.bpf import BpfPlan

_REGION_FUNCTION = "mmap"


def check_word_size(process: RemoteProcess) -> None:
    """Raises TargetError for a 32-bit process: probes in one are refused by the kernel, or kill it."""
    if process.is_64_bit:
        return
    machine = MACHINE_NAMES.get(process.machine, "32-bit")
    raise TargetError(
        f"process {process.pid} ({process.name}) is 32-bit ({machine}), where the kernel places no uprobes",
        "use --tracer preload, or a 64-bit build of it",
    )


def plan_remote(process: RemoteProcess, agent: str, files: RemoteFiles, options: SessionOptions) -> BpfPlan:
    """Only the file with the allocator is pulled. agent: memleakd on the device. Raises TargetError, DeviceError."""
    malloc = options.symbols_prefix + "malloc"
    objects = process.objects(agent, (malloc, _REGION_FUNCTION))
    chosen = _allocator(objects, malloc, options)
    allocator = _pulled(process, chosen, files)
    probes, notes = plan_probes(allocator.open_path, options)
    placed = _on_device(probes, process, chosen)
    if options.mmap and not any(probe.function == _REGION_FUNCTION for probe in probes):
        libc = next((one for one in objects if _REGION_FUNCTION in one.defines), None)
        more, remarks = plan_region_probes(_pulled(process, libc, files).open_path) if libc else ([], [])
        placed += _on_device(more, process, libc) if libc else []
        notes = [*notes, *(remarks if libc else ["no mmap found to be probed"])]
    return BpfPlan(allocator, tuple(placed), tuple(notes))


def _allocator(objects: Sequence[RemoteObject], malloc: str, options: SessionOptions) -> RemoteObject:
    """The object whose malloc the linker binds; of a static program the executable itself."""
    if options.object is not None:
        return _named(objects, options.object)
    found = next((one for one in objects if malloc in one.defines), None)
    if found is None and not objects:
        raise TargetError(
            f"no function {malloc} found: the process maps no files", "name the library with --object"
        )
    return found or objects[0]


def _named(objects: Sequence[RemoteObject], name: str) -> RemoteObject:
    for one in objects:
        if name in (one.path, one.name, one.name.partition(".so")[0]):
            return one
    names = ", ".join(one.name for one in objects[:20])
    raise TargetError(f"no object named {name} in the process", f"it has {names}")


def _pulled(process: RemoteProcess, one: RemoteObject, files: RemoteFiles) -> LoadedObject:
    copy = files.copy(process.pid, one.mapping)
    if copy is None:
        reason = files.refused[-1] if files.refused else f"{one.path} could not be pulled"
        raise TargetError(reason, "its probes cannot be planned without it; run as root")
    return LoadedObject(one.path, os.fspath(copy))


def _on_device(probes: Sequence[Probe], process: RemoteProcess, one: RemoteObject) -> list[Probe]:
    """By way of the process, whose mount namespace has the file even where the shell's has another one."""
    first, end = one.mapping.start, one.mapping.end
    place = f"/proc/{process.pid}/root{one.path}"
    if one.mapping.path != one.path:  # deleted: a system library after an update, for one
        place = f"/proc/{process.pid}/map_files/{first:x}-{end:x}"
    return [replace(probe, path=place) for probe in probes]
