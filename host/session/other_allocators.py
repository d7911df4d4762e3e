"""Allocators that a traced program loaded and whose calls were not seen: by probes in one file, or by patches of it."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from memleak_android.host.errors import MemleakError
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.binaries import SHIM
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.profile.coverage import Answer, Condition, Reason
from memleak_android.host.profile.runtime_sites import PYTHON_INTERFACE, PYTHON_MODULE
from memleak_android.host.stacks.address_spaces import recorded_mapping
from memleak_android.host.stacks.modules import LocalFiles
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.probes.allocator import binds_its_own, defines, exports
from memleak_android.unwind.maps import Mapping

# The C library's malloc is behind another allocator's in search order; a linker's own serves until it has loaded libc.
_NEVER_MEANT = re.compile(
    r"(lib[cm]|ld|ld-linux.*|ld-musl.*|linker(64)?|libdl)([-.].*)?\.so(\..*)?|linker(64)?"
)
_IGNORING = re.compile(r"-[A-Za-z]*[EI][A-Za-z]*")  # python -E and -I: the environment
_BY_BINDING = ("preload", "plt")  # by the functions to which the dynamic linker binds calls
_LOOKED_AT_MAX = 4096


def other_allocators(capture: Capture) -> list[Reason]:
    """For a session on this machine. Unknown, because a library may define malloc and never be bound to."""
    allocator, tracer = capture.session.tracing.allocator, capture.session.tracing.tracer
    if isinstance(allocator, str) and allocator:
        ask, way_out = defines, "-O"
    elif tracer in _BY_BINDING:
        ask, way_out = binds_its_own, "--tracer bpf -O"
    else:
        return []
    found: dict[str, None] = {}
    looked_at = {allocator}
    for pid, mapping in _code_mappings(capture):
        name = os.path.basename(mapping.path)
        if mapping.path in looked_at or len(looked_at) > _LOOKED_AT_MAX:
            continue
        looked_at.add(mapping.path)
        if name != SHIM and not _NEVER_MEANT.fullmatch(name) and _ask(ask, pid, mapping, "malloc"):
            found[name] = None
    return [
        Reason(
            Condition.PROGRAMS,
            Answer.UNKNOWN,
            f"{name} brings a malloc of its own, which was not traced ({way_out} {name} traces it)",
        )
        for name in found
    ]


def python_objects(capture: Capture, options: SessionOptions) -> list[Reason]:
    """For a session on this machine by BPF: an interpreter of whose objects it sees the arenas only, as regions."""
    by_malloc = os.environ.get("PYTHONMALLOC") == "malloc" and not any(
        map(_IGNORING.fullmatch, options.command)
    )
    is_of_bpf = capture.session.tracing.tracer == "bpf" and not options.pairs and not options.every_process
    if not is_of_bpf or (options.command and by_malloc):
        return []
    text = (
        "Python's objects of up to 512 bytes were not counted, and its lines not read"
        " (--tracer preload -- CMD or --tracer plt --pid N does both)"
    )
    looked_at = set[str]()
    for pid, mapping in _code_mappings(capture):
        if mapping.path in looked_at or not PYTHON_MODULE.fullmatch(mapping.path):
            continue
        looked_at.add(mapping.path)
        # One that cannot be read is taken for an interpreter: nothing is called complete because it could not be looked at.
        if _ask(exports, pid, mapping, PYTHON_INTERFACE) is not False:
            return [Reason(Condition.PROGRAMS, Answer.TOLERATED, text)]
    return []


def _code_mappings(capture: Capture) -> Iterator[tuple[int, Mapping]]:
    for maps in capture.maps:
        yield from ((maps.pid, one) for one in parse_maps(maps.text) if one.is_executable)
    for rows, paths in capture.mappings:
        for row, path in zip(rows, paths, strict=True):
            yield int(row["pid"]), recorded_mapping(row, path)


def _ask(question: Callable[[str, str], bool], pid: int, mapping: Mapping, function: str) -> bool | None:
    """None = the file cannot be read."""
    descriptor = LocalFiles(is_running=False).open(pid, mapping)
    if descriptor is None:
        return None
    try:
        with suppress(MemleakError):  # not an ELF file
            return question(f"/proc/self/fd/{descriptor}", function)
        return None
    finally:
        os.close(descriptor)
