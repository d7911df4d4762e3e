"""Allocators that a traced program loaded and whose calls were not seen: by probes in one file, or by patches of it."""

import os
import re
from collections.abc import Callable, Iterator
from itertools import chain

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import MemleakError
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.binaries import SHIM
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.profile.coverage import Answer, Condition, Reason
from memleak_android.host.profile.runtime_sites import PYTHON_INTERFACE, PYTHON_MODULE
from memleak_android.host.stacks.address_spaces import recorded_mapping
from memleak_android.host.stacks.modules import DELETED, ModuleFiles
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.probes.allocator import binds_its_own, defines
from memleak_android.unwind.maps import Mapping

# The C library's malloc is behind another allocator's in search order; a linker's own serves until it has loaded libc.
_NEVER_MEANT = re.compile(
    r"(lib[cm]|ld|ld-linux.*|ld-musl.*|linker(64)?|libdl)([-.].*)?\.so(\..*)?|linker(64)?"
)
_IGNORING = re.compile(r"-[A-Za-z]*[EI][A-Za-z]*")  # python -E and -I: the environment
_BY_BINDING = ("preload", "plt")  # by the functions to which the dynamic linker binds calls
_LOOKED_AT_MAX = 4096
_ELF = b"\x7fELF"


def other_allocators(capture: Capture, files: ModuleFiles) -> list[Reason]:
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
        path = mapping.path.removesuffix(DELETED)
        name = os.path.basename(path)
        if path in looked_at or len(looked_at) > _LOOKED_AT_MAX:
            continue
        looked_at.add(path)
        if name == SHIM or _NEVER_MEANT.fullmatch(name):
            continue
        brings = _ask(lambda elf: ask(elf, "malloc"), files, pid, mapping)
        if brings is None:
            found[f"{name} could not be read: it may bring a malloc of its own"] = None
        elif brings:
            found[f"{name} brings a malloc of its own, which was not traced ({way_out} {name} traces it)"] = (
                None
            )
    return [Reason(Condition.PROGRAMS, Answer.UNKNOWN, text) for text in found]


def python_objects(capture: Capture, files: ModuleFiles, options: SessionOptions) -> list[Reason]:
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
        if _ask(_is_python, files, pid, mapping) is not False:
            return [Reason(Condition.PROGRAMS, Answer.TOLERATED, text)]
    return []


def _code_mappings(capture: Capture) -> Iterator[tuple[int, Mapping]]:
    """Of files. A dynamic linker maps them privately; a compiler shares its code between two mappings."""
    of_maps = ((maps.pid, mapping) for maps in capture.maps for mapping in parse_maps(maps.text))
    recorded = (
        (int(row["pid"]), recorded_mapping(row, path))
        for rows, paths in capture.mappings
        for row, path in zip(rows, paths, strict=True)
    )
    for pid, mapping in chain(of_maps, recorded):
        if mapping.is_executable and mapping.path.startswith("/") and "s" not in mapping.permissions:
            yield pid, mapping


def _is_python(elf: ElfFile) -> bool:
    return bool(elf.dynamic_functions({PYTHON_INTERFACE}))


def _ask(question: Callable[[ElfFile], bool], files: ModuleFiles, pid: int, mapping: Mapping) -> bool | None:
    """None = the file cannot be read. Other files than ELF's are of no dynamic linker: compilers map them."""
    data = files.peek(pid, mapping)
    try:
        return question(ElfFile(mapping.path, data)) if data[:4] == _ELF else None if not data else False
    except MemleakError:
        return None
