"""Inline hooks for the allocator of a running process: its functions, their trampolines, the agent's lines.

They serve allocators that no slot leads to: linked into the program, static or hidden. The process still needs a dynamic
linker, which loads the shim.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.host.elf.dynamic import ElfFile, FunctionSymbol
from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.binaries import SHIM
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.tracers.agent.session_options import AllocatorChoice
from memleak_android.host.tracers.inline.landings import Landing
from memleak_android.host.tracers.inline.patch_plan import (
    TRAMPOLINE_BYTES,
    FunctionCode,
    PatchPlan,
    plan_patch,
)
from memleak_android.host.tracers.inline.target import (
    HookedProcess,
    MappedFile,
    Shim,
    mapped_file,
    patch_line,
    slot_line,
)
from memleak_android.host.tracers.probes.allocator import (
    HEAP_FUNCTIONS,
    chosen_at_run_time,
    find_allocator,
    no_allocator,
)
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.placement import FUNCTION_BYTES_MAX, jumps_from_outside
from memleak_android.host.wire.blocks import Rows
from memleak_android.unwind.elf_headers import EM_ARM

HEAP_SLOTS = 32  # of a room; later slots belong to --pairs

# Without one of these the accounting would be wrong: the others pass its blocks on.
_INDISPENSABLE = frozenset(("malloc", "free", "realloc", "reallocarray"))


@dataclass(frozen=True, slots=True)
class InlineHooks:
    """lines: of the agent's configuration.
    notes: for -v.
    unplaced: sentences about the functions that are not patched.
    stops: of the process's threads so far, rows of STOP.
    functions: addresses of the patched functions.
    """

    allocator: LoadedObject
    lines: list[str]
    notes: tuple[str, ...]
    unplaced: tuple[str, ...]
    stops: Rows
    functions: frozenset[int]


def plan_inline(process: HookedProcess, allocator: LoadedObject, choice: AllocatorChoice) -> InlineHooks:
    """Loads the shim, which changes nothing yet, and plans the patches.

    Raises TargetError if there is no allocator, it cannot be patched, or the process cannot be entered.
    """
    if os.path.basename(allocator.path) == SHIM:
        raise TargetError("the process was started with the shim and is measured already", "end that session")
    elf = _open(allocator.open_path)
    notes = list[str]()
    functions, chosen = _functions(elf, choice.symbols_prefix)
    file = mapped_file(process, allocator.path, elf, allocator.dynamic)
    first = file.address(functions["malloc"].vaddr)
    reservation = process.reserve(first)
    shim = Shim.of(process)
    if reservation.distance <= 0:
        reason = os.strerror(-reservation.distance)
        notes.append(f"no memory within reach of the allocator ({reason}): the jumps are long")
    code = _function_codes(process.status(), file, functions)
    plans, refused = _plan_all(code, shim, shim.room(first, reservation))
    notes += [f"{code[name].name}: patched with {len(plan.patch)} bytes" for name, plan in plans.items()]
    unplaced = (*chosen, *refused)
    patched = frozenset(code[name].address for name in plans)
    lines = _lines(plans, shim, first)
    return InlineHooks(allocator, lines, (*notes, *unplaced), unplaced, reservation.stops, patched)


def no_heap_lines(shim: Shim) -> list[str]:
    """Lines of a session without the heap: they reset the values of an earlier session in the shim."""
    return [slot_line(address, 0) for address in shim.hooks().values()]


def local_allocator(objects: Sequence[LoadedObject], choice: AllocatorChoice) -> LoadedObject:
    """The program's own allocator, exported or not; else the one that the other tracers find."""
    malloc = choice.malloc
    if choice.object is None and objects and _open(objects[0].open_path).static_functions({malloc}):
        return objects[0]
    return find_allocator(objects, choice)


def _open(path: str) -> ElfFile:
    try:
        elf = ElfFile(path)
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error.strerror}") from None
    if elf.machine == EM_ARM:
        raise TargetError(
            f"{path} is 32-bit arm code, which cannot be patched safely: conditional blocks and pc-relative registers"
            " do not move",
            "use --tracer plt",
        )
    return elf


def _functions(elf: ElfFile, prefix: str) -> tuple[dict[str, FunctionSymbol], list[str]]:
    """The allocator's functions by name without the prefix, each address once; and sentences about those left out."""
    wanted = {prefix + function.name for function in HEAP_FUNCTIONS}
    symbols = elf.dynamic_functions(wanted)
    if not any(symbol.name == prefix + "malloc" for symbol in symbols):
        symbols = elf.static_functions(wanted)
    found: dict[str, FunctionSymbol] = {}
    chosen = []
    for function in HEAP_FUNCTIONS:
        symbol = next((candidate for candidate in symbols if candidate.name == prefix + function.name), None)
        if symbol is None or any(symbol.vaddr == other.vaddr for other in found.values()):
            continue
        if symbol.is_indirect:
            chosen.append(
                f"{symbol.name}: not patched, its address is chosen at run time (ifunc): its blocks are not seen"
            )
        else:
            found[function.name] = symbol
    for name in ("malloc", "free"):
        if name not in found and any(
            candidate.name == prefix + name and candidate.is_indirect for candidate in symbols
        ):
            raise chosen_at_run_time(prefix + name, elf.path)
        if name not in found:
            raise no_allocator(prefix + name, elf.path)
    return found, chosen


def _function_codes(
    status: str, file: MappedFile, functions: dict[str, FunctionSymbol]
) -> dict[str, FunctionCode]:
    elf = file.elf
    arch = PROBED_ARCHES.get(elf.machine)
    offset = elf.file_offset(functions["malloc"].vaddr)
    text = elf.text_segment(offset) if offset is not None else None
    if arch is None or text is None:
        raise TargetError(f"{elf.path}: malloc is not in executable code", "use --tracer bpf")
    starts = {
        name: (elf.file_offset(symbol.vaddr) or 0) - text.file_offset for name, symbol in functions.items()
    }
    ranges = [(starts[name], starts[name] + symbol.size) for name, symbol in functions.items()]
    jumped_to = jumps_from_outside(arch, elf.view(text.file_offset, text.file_bytes), ranges)
    surroundings = file.surroundings(status)
    return {
        name: FunctionCode(
            name=symbol.name,
            machine=elf.machine,
            address=file.address(symbol.vaddr),
            code=elf.slice(text.file_offset + starts[name], min(symbol.size, FUNCTION_BYTES_MAX + 1)),
            jumped_to=frozenset(hits),
            surroundings=surroundings,
        )
        for (name, symbol), hits in zip(functions.items(), jumped_to, strict=True)
    }


def _plan_all(
    functions: dict[str, FunctionCode], shim: Shim, room: int
) -> tuple[dict[str, PatchPlan], list[str]]:
    """The plans by name, and sentences about functions that cannot be patched."""
    plans: dict[str, PatchPlan] = {}
    refused = []
    hooks = [name for name in shim.hooks() if name in functions]
    if len(hooks) > HEAP_SLOTS:
        raise TracerError(f"{len(hooks)} functions are more than the room holds")
    for i, name in enumerate(hooks):
        try:
            plans[name] = plan_patch(
                functions[name], Landing(shim.landing(name)), room + i * TRAMPOLINE_BYTES
            )
        except TargetError as refusal:
            if name in _INDISPENSABLE:
                raise
            refused.append(f"{refusal.message}: its blocks are not seen")
    return plans, refused


def _lines(plans: dict[str, PatchPlan], shim: Shim, allocator: int) -> list[str]:
    code, _ = shim.data("memleak_moved_code")
    slots = {address: plans[name].original if name in plans else 0 for name, address in shim.hooks().items()}
    lines = [slot_line(address, value) for address, value in {code: allocator, **slots}.items()]
    return lines + [patch_line(plan) for plan in plans.values()]
