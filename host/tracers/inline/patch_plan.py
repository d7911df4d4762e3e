"""The plan of an inline hook: the jump at a function's entry, and the trampoline that still runs the function.

    function:   [landing pad] [kept] jump ──▶ landing (the shim's)        trampoline: [preamble] moved first instructions
                rest of the function ◀────────────────────────────────────────────────┘ jump behind the patch

Kept instructions stay in place, so that other tracers' uprobes on them do no harm (entry_undo.py). The trampoline's preamble
undoes them before the landing; the moved instructions execute them again.

The host decides everything for the addresses of the running process. The agent only compares, writes and moves threads
(device/agent/inject/patch.h). Code that cannot be proved safe to move is refused with the reason.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.inline import relocation_arm64, relocation_x86_64
from memleak_android.host.tracers.inline.entry_undo import undo_arm64, undo_x86_64, undone_at_entry
from memleak_android.host.tracers.inline.landings import ARM64_STUB, X86_64_STUB, Landing, Stub
from memleak_android.host.tracers.inline.relocation import (
    UNGUARDED,
    CannotRelocate,
    Reference,
    Relocated,
    Surroundings,
    check_reference,
)
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES, ProbedArch
from memleak_android.host.tracers.probes.placement import FUNCTION_BYTES_MAX, unprovable
from memleak_android.unwind.code.disassembly import Flow, Instruction
from memleak_android.unwind.elf_headers import EM_AARCH64, EM_X86_64

TRAMPOLINE_BYTES = 256  # of one function: preamble and moved instructions
_PREAMBLE_ALIGNMENT = 16
_KEPT_MAX = 4


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """A function in a process.

    address: of its first byte.
    code: all of it, by its symbol's size, as in its file.
    jumped_to: offsets to which other code jumps.
    padding: bytes behind it that never run.
    """

    name: str
    machine: int
    address: int
    code: bytes
    jumped_to: frozenset[int] = frozenset()
    surroundings: Surroundings = UNGUARDED
    padding: bytes = b""


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """The bytes that lead calls of `function` to the landing.

    kept: the function's first bytes, which stay, up to address.
    expected: bytes at address, which `patch`, of the same length, replaces.
    trampoline: bytes to write to trampoline_address first.
    original: address in the trampoline that does what the function did.
    moves: for a thread inside the range, (its pc, the pc at which it continues).
    returns: the same for the removal of the patch.
    scratch: registers, free at the function's entry, that may change on the way.
    """

    name: str
    address: int
    kept: bytes
    expected: bytes
    patch: bytes
    trampoline_address: int
    trampoline: bytes
    original: int
    moves: tuple[tuple[int, int], ...]
    returns: tuple[tuple[int, int], ...]
    scratch: frozenset[str]


@dataclass(frozen=True, slots=True)
class _PatchArch:
    """jumps: encoders of a jump from one address to another, the shortest first; None if it does not reach.
    landing: landing pads, which must stay first and do nothing else.
    step: bytes between two pcs in a patch at which a thread may be.
    scratch: registers that the jumps change.
    stub: of a function of --pairs (landings.py).
    undo: of one instruction (entry_undo.py), including landing pads with other effects.
    """

    relocate: Callable[[Sequence[Instruction], int, Surroundings], Relocated]
    reference: Callable[[Instruction], Reference | None]
    jumps: tuple[Callable[[int, int], bytes | None], ...]
    landing: frozenset[bytes]
    step: int
    scratch: frozenset[str]
    stub: Stub
    undo: Callable[[Instruction], bytes | None]


_X86_64 = _PatchArch(
    relocate=relocation_x86_64.relocate_x86_64,
    reference=relocation_x86_64.reference_x86_64,
    jumps=(relocation_x86_64.direct_jump, relocation_x86_64.absolute_jump),
    landing=frozenset((relocation_x86_64.ENDBR64,)),
    step=16,  # each jump is one instruction
    scratch=frozenset(),
    stub=X86_64_STUB,
    undo=undo_x86_64,
)
_ARM64 = _PatchArch(
    relocate=relocation_arm64.relocate_arm64,
    reference=relocation_arm64.reference_arm64,
    jumps=(relocation_arm64.direct_jump, relocation_arm64.absolute_jump),
    landing=frozenset(bytes.fromhex(code) for code in ("5f2403d5", "df2403d5")),  # bti c, bti jc
    step=4,
    scratch=frozenset(("x16",)),
    stub=ARM64_STUB,
    undo=undo_arm64,
)
_ARCHES = {EM_X86_64: _X86_64, EM_AARCH64: _ARM64}


def plan_patch(function: FunctionCode, landing: Landing, trampoline: int) -> PatchPlan:
    """Plans the hook of `function`. Raises TargetError if it cannot be patched safely.

    trampoline: address of TRAMPOLINE_BYTES, a multiple of 16.
    """
    arch, decoder = _ARCHES.get(function.machine), PROBED_ARCHES.get(function.machine)
    if arch is None or decoder is None:
        raise _refused(function, "inline hooks support x86_64 and arm64 only")
    try:
        return _plan(arch, decoder, function, landing, trampoline)
    except CannotRelocate as reason:
        raise _refused(function, str(reason)) from None


def _refused(function: FunctionCode, reason: str) -> TargetError:
    return TargetError(
        f"{function.name} cannot be patched: {reason}",
        "use --tracer bpf, or --tracer plt for calls from other modules",
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A function's first instructions behind its landing pad: kept ones with their undo code, and the rest."""

    kept: Sequence[Instruction]
    rest: Sequence[Instruction]
    undo: bytes


def _plan(
    arch: _PatchArch, decoder: ProbedArch, function: FunctionCode, landing: Landing, trampoline: int
) -> PatchPlan:
    instructions = list(decoder.decode(function.code[:FUNCTION_BYTES_MAX], function.address))
    if not instructions:
        raise CannotRelocate("its bytes are unknown or not code")
    if reason := unprovable(decoder, function.code, instructions):
        raise CannotRelocate(reason)
    reason = ""
    for entry in _entries(arch, decoder, instructions):
        try:
            return _plan_behind(arch, function, instructions, entry, landing, trampoline)
        except CannotRelocate as refusal:
            reason = str(refusal)
    raise CannotRelocate(reason)


def _plan_behind(
    arch: _PatchArch,
    function: FunctionCode,
    instructions: Sequence[Instruction],
    entry: _Entry,
    landing: Landing,
    trampoline: int,
) -> PatchPlan:
    reason = ""  # of the shortest jump
    scratch = arch.scratch if landing.number is None else arch.scratch | arch.stub.scratch
    n_preamble = len(_preamble(arch, trampoline, entry, landing, 0))
    at = entry.rest[0].address if entry.rest else function.address
    for patch in _jumps(arch, at, entry, landing, trampoline):
        range_ = _covering(entry.rest, len(patch), len(function.padding))
        if not range_:
            continue
        moving = [*entry.kept, *range_]
        try:
            _check_others(arch, function, instructions, moving, range_)
            _check_padding(function, range_[0].address + len(patch))
            _check_entry(scratch, moving)
            moved = arch.relocate(moving, trampoline + n_preamble, function.surroundings)
            preamble = _preamble(arch, trampoline, entry, landing, moved.address)
            return _assemble(arch, function, range_, patch, preamble, moved)
        except CannotRelocate as refusal:
            reason = reason or str(refusal)
    raise CannotRelocate(reason or "it is shorter than a jump")


def _entries(arch: _PatchArch, decoder: ProbedArch, instructions: Sequence[Instruction]) -> Iterator[_Entry]:
    """Yields candidates: keep up to the cheapest entry probe (placement.py), keep one instruction, keep none."""
    rest = instructions[instructions[0].code in arch.landing :]
    undone = list(undone_at_entry(rest[:_KEPT_MAX], arch.undo))
    probed = next((i + 1 for i, instruction in enumerate(rest) if decoder.is_cheap(instruction)), 0)
    for n in sorted({n for n in (probed, 1, 0) if n <= len(undone)}, reverse=True):
        yield _Entry(rest[:n], rest[n:], b"".join(reversed(undone[:n])))


def _jumps(arch: _PatchArch, at: int, entry: _Entry, landing: Landing, trampoline: int) -> Iterator[bytes]:
    """Yields jumps to the landing, to the preamble, and long ones. A preamble that does more than jump is never bypassed."""
    direct, absolute = arch.jumps
    if landing.number is None and not entry.kept:
        found = (direct(at, landing.address), direct(at, trampoline), absolute(at, landing.address))
    else:
        found = (None, direct(at, trampoline), absolute(at, trampoline))
    for jump in found:
        if jump is not None:
            yield jump


def _preamble(arch: _PatchArch, at: int, entry: _Entry, landing: Landing, original: int) -> bytes:
    """Undoes the kept instructions and jumps to the landing; padded to a multiple of 16."""
    if landing.number is None:
        code = entry.undo + (arch.jumps[-1](at, landing.address) or b"")
    else:
        code = entry.undo + arch.stub.call(landing.address, landing.call(original))
    code = arch.stub.pad + code if entry.kept or landing.number is not None else code
    return code + bytes(-len(code) % _PREAMBLE_ALIGNMENT)


def _covering(instructions: Sequence[Instruction], size: int, n_padding: int) -> list[Instruction]:
    """The first instructions of at least size bytes; padding behind the function counts. Empty if that is not enough."""
    end = instructions[0].address + size if instructions else 0
    range_ = [instruction for instruction in instructions if instruction.address < end]
    if not range_ or range_[-1].end >= end:
        return range_
    leaves = range_[-1].flow in (Flow.RETURN, Flow.JUMP)
    return range_ if leaves and range_[-1].end + n_padding >= end else []


def _check_others(
    arch: _PatchArch,
    function: FunctionCode,
    instructions: Sequence[Instruction],
    moving: Sequence[Instruction],
    range_: Sequence[Instruction],
) -> None:
    """Refuses code that jumps into the moved instructions or reads the range. Only calls may target the start. An apparent
    jump between two instructions is not a jump.
    """
    end = range_[-1].end
    inside = {instruction.address - function.address for instruction in moving[1:]}
    for instruction in instructions:
        if reference := arch.reference(instruction):
            check_reference(instruction, reference, range_)
        if (
            instruction.target is not None
            and instruction.flow is not Flow.CALL
            and function.address <= instruction.target < end
        ):
            raise CannotRelocate(
                f"`{instruction}` at +{instruction.address - function.address:#x} jumps back to its start"
            )
    for offset in sorted(inside & function.jumped_to):
        raise CannotRelocate(f"+{offset:#x} is a target of other code")


def _check_padding(function: FunctionCode, patch_end: int) -> None:
    """Refuses padding that would be overwritten although code jumps to it."""
    overwritten = range(len(function.code), patch_end - function.address)
    for offset in sorted(function.jumped_to.intersection(overwritten)):
        raise CannotRelocate(f"+{offset:#x}, behind its end, is a jump target")


def _check_entry(scratch: frozenset[str], range_: Sequence[Instruction]) -> None:
    """Refuses a function that reads a scratch register before it writes it."""
    written: set[str] = set()
    for instruction in range_:
        if wanted := scratch & instruction.reads - written:
            raise CannotRelocate(f"`{instruction}` reads {min(wanted)} at its entry")
        written |= instruction.writes


def _assemble(
    arch: _PatchArch,
    function: FunctionCode,
    range_: Sequence[Instruction],
    patch: bytes,
    preamble: bytes,
    moved: Relocated,
) -> PatchPlan:
    trampoline = preamble + moved.code
    if len(trampoline) > TRAMPOLINE_BYTES:
        raise CannotRelocate(f"its moved instructions take {len(trampoline)} bytes")
    start, starts = range_[0].address, moved.starts[-len(range_) :]
    moves = [
        (instruction.address, moved.address + offset)
        for instruction, offset in zip(range_, starts, strict=True)
        if offset
    ]
    return PatchPlan(
        name=function.name,
        address=start,
        kept=function.code[: start - function.address],
        expected=(b"".join(instruction.code for instruction in range_) + function.padding)[: len(patch)],
        patch=patch,
        trampoline_address=moved.address - len(preamble),
        trampoline=trampoline,
        original=moved.address,
        moves=tuple(moves),
        returns=tuple((start + step, start) for step in range(arch.step, len(patch), arch.step)),
        scratch=moved.scratch | arch.scratch,
    )
