"""An inline hook, planned: the bytes that lead from a function's entry to ours, and those that still lead to its own.

    function:   [landing pad] jump ──▶ landing (the shim's)        trampoline: the original's first instructions, moved
                the rest of it  ◀──────────────────────────────────────────────┘ jump behind the patch

Everything is decided here, on the host, for addresses of the running process; whoever writes it into the process only
compares, writes and moves threads (device/agent/patch.h). What cannot be proved is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memleak_android.host.device.elf_file import EM_AARCH64, EM_X86_64
from memleak_android.host.errors import TargetError
from memleak_android.host.tracers import relocation_arm64, relocation_x86_64
from memleak_android.host.tracers.islands import ARM64_STUB, X86_64_STUB, Landing, Stub
from memleak_android.host.tracers.placement import FUNCTION_BYTES_MAX, unprovable
from memleak_android.host.tracers.probed_arch import PROBED_ARCHES, ProbedArch
from memleak_android.host.tracers.relocation import (
    UNGUARDED,
    CannotRelocate,
    Reference,
    Relocated,
    Surroundings,
    check_reference,
)
from memleak_android.unwind.disassembly import Flow, Instruction

TRAMPOLINE_BYTES = 256  # room for one function: its island and its moved instructions
_ISLAND_BYTES = 16


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """A function in a process. address: of its first byte. code: all of it, by its symbol's size, as in its file.

    jumped_to: offsets to which code outside of it jumps. padding: bytes behind it that belong to nobody and never run.
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
    """What to write into the process so that calls of `function` arrive at the landing.

    At address stand `expected`, to be replaced by `patch`, of the same length. trampoline: bytes to be put to
    trampoline_address before. original: address in it that does what the function did. moves: for a thread whose
    pc is found inside the range, (its pc, where it goes on); returns: likewise when the patch is taken away. scratch:
    registers that hold nothing at the function's entry and that may change on the way.
    """

    name: str
    address: int
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
    """jumps: ways to go from one address to another, the shortest first; None where one does not reach.

    keeps_landing: a first instruction that must stay the first. replaces_landing: one that is a landing pad
    and more, so that plain_landing takes its place where one is needed. step: bytes between two places in a
    patch at which a thread may be found. scratch: what the jumps change. stub: of a function of --pairs (islands.py).
    """

    relocate: Callable[[Sequence[Instruction], int, Surroundings], Relocated]
    reference: Callable[[Instruction], Reference | None]
    jumps: tuple[Callable[[int, int], bytes | None], ...]
    keeps_landing: frozenset[bytes]
    replaces_landing: frozenset[bytes]
    plain_landing: bytes
    step: int
    scratch: frozenset[str]
    stub: Stub


_X86_64 = _PatchArch(
    relocate=relocation_x86_64.relocate_x86_64,
    reference=relocation_x86_64.reference_x86_64,
    jumps=(relocation_x86_64.direct_jump, relocation_x86_64.absolute_jump),
    keeps_landing=frozenset((relocation_x86_64.ENDBR64,)),
    replaces_landing=frozenset(),
    plain_landing=b"",
    step=16,  # each jump is one instruction
    scratch=frozenset(),
    stub=X86_64_STUB,
)
_ARM64 = _PatchArch(
    relocate=relocation_arm64.relocate_arm64,
    reference=relocation_arm64.reference_arm64,
    jumps=(relocation_arm64.direct_jump, relocation_arm64.absolute_jump),
    keeps_landing=frozenset(bytes.fromhex(code) for code in ("5f2403d5", "df2403d5")),  # bti c, bti jc
    replaces_landing=frozenset(bytes.fromhex(code) for code in ("3f2303d5", "7f2303d5")),  # paciasp, pacibsp
    plain_landing=relocation_arm64.BTI_C.to_bytes(4, "little"),
    step=4,
    scratch=frozenset(("x16",)),
    stub=ARM64_STUB,
)
_ARCHES = {EM_X86_64: _X86_64, EM_AARCH64: _ARM64}


def plan_patch(function: FunctionCode, landing: Landing, trampoline: int) -> PatchPlan:
    """The plan that leads `function` to `landing`, with TRAMPOLINE_BYTES for it at `trampoline`, a multiple of 16.

    Raises TargetError: what cannot be patched without doubt.
    """
    arch, decoder = _ARCHES.get(function.machine), PROBED_ARCHES.get(function.machine)
    if arch is None or decoder is None:
        raise _refused(function, "inline hooks are made for x86_64 and arm64 only")
    try:
        return _plan(arch, decoder, function, landing, trampoline)
    except CannotRelocate as reason:
        raise _refused(function, str(reason)) from None


def _refused(function: FunctionCode, reason: str) -> TargetError:
    return TargetError(
        f"{function.name} cannot be patched: {reason}",
        "use --tracer bpf, or --tracer plt for what others call",
    )


def _plan(
    arch: _PatchArch, decoder: ProbedArch, function: FunctionCode, landing: Landing, trampoline: int
) -> PatchPlan:
    instructions = list(decoder.decode(function.code[:FUNCTION_BYTES_MAX], function.address))
    if not instructions:
        raise CannotRelocate("its bytes are not known or not code")
    if reason := unprovable(decoder, function.code, instructions):
        raise CannotRelocate(reason)
    behind, pad = _landing_pad(arch, function, instructions[0])
    rest = instructions[1:] if behind else instructions
    reason = ""  # of the shortest jump
    scratch = arch.scratch if landing.number is None else arch.scratch | arch.stub.scratch
    for jump in _jumps(arch, function.address + behind + len(pad), landing, trampoline):
        range_ = _covering(rest, len(pad + jump), len(function.padding))
        if not range_:
            continue
        try:
            _check_others(arch, function, instructions, range_)
            _check_padding(function, range_[0].address + len(pad + jump))
            _check_entry(scratch, range_)
            moved = arch.relocate(range_, trampoline + _island_bytes(arch, landing), function.surroundings)
            return _assemble(arch, function, range_, pad + jump, landing, moved)
        except CannotRelocate as refusal:
            reason = reason or str(refusal)
    raise CannotRelocate(reason or "it is shorter than a jump")


def _landing_pad(arch: _PatchArch, function: FunctionCode, first: Instruction) -> tuple[int, bytes]:
    """Bytes at the start that stay as they are, and those that the patch itself must begin with."""
    if first.code in arch.keeps_landing:
        return first.size, b""
    if first.code in arch.replaces_landing and function.surroundings.has_guarded_calls:
        return 0, arch.plain_landing
    return 0, b""


def _jumps(arch: _PatchArch, at: int, landing: Landing, trampoline: int) -> Iterator[bytes]:
    """To the landing itself, over the island at the beginning of the trampoline, and the long way; always over a stub."""
    direct, absolute = arch.jumps
    if landing.number is None:
        found = (direct(at, landing.address), direct(at, trampoline), absolute(at, landing.address))
    else:
        found = (None, direct(at, trampoline), absolute(at, trampoline))
    for jump in found:
        if jump is not None:
            yield jump


def _island_bytes(arch: _PatchArch, landing: Landing) -> int:
    return _ISLAND_BYTES if landing.number is None else arch.stub.size


def _island(arch: _PatchArch, at: int, landing: Landing, original: int) -> bytes:
    if landing.number is None:
        return arch.jumps[-1](at, landing.address) or b""
    return arch.stub.code(landing.address, landing.call(original))


def _covering(instructions: Sequence[Instruction], size: int, n_padding: int) -> list[Instruction]:
    """The first ones that take at least size bytes, all where what follows is padding; none when that is not enough."""
    end = instructions[0].address + size if instructions else 0
    range_ = [one for one in instructions if one.address < end]
    if not range_ or range_[-1].end >= end:
        return range_
    leaves = range_[-1].flow in (Flow.RETURN, Flow.JUMP)
    return range_ if leaves and range_[-1].end + n_padding >= end else []


def _check_others(
    arch: _PatchArch,
    function: FunctionCode,
    instructions: Sequence[Instruction],
    range_: Sequence[Instruction],
) -> None:
    """None may arrive inside the range or read it; at its start only calls may, which the function's own loops are
    not. (What seems to jump between two instructions is no jump.)"""
    end = range_[-1].end
    inside = {one.address - function.address for one in range_[1:]}
    for one in instructions:
        if reference := arch.reference(one):
            check_reference(one, reference, range_)
        if one.target is not None and one.flow is not Flow.CALL and function.address <= one.target < end:
            raise CannotRelocate(f"`{one}` at +{one.address - function.address:#x} goes back to its start")
    for offset in sorted(inside & function.jumped_to):
        raise CannotRelocate(f"+{offset:#x} is jumped to from outside of it")


def _check_padding(function: FunctionCode, patch_end: int) -> None:
    """What seems to be nobody's, and is overwritten, may not be jumped to."""
    overwritten = range(len(function.code), patch_end - function.address)
    for offset in sorted(function.jumped_to.intersection(overwritten)):
        raise CannotRelocate(f"+{offset:#x}, behind its end, is jumped to")


def _check_entry(scratch: frozenset[str], range_: Sequence[Instruction]) -> None:
    """What a jump changes must hold nothing at the entry, by what the instructions themselves make of it."""
    written: set[str] = set()
    for one in range_:
        if wanted := scratch & one.reads - written:
            raise CannotRelocate(f"`{one}` wants something in {min(wanted)} at its entry")
        written |= one.writes


def _assemble(
    arch: _PatchArch,
    function: FunctionCode,
    range_: Sequence[Instruction],
    patch: bytes,
    landing: Landing,
    moved: Relocated,
) -> PatchPlan:
    n_island = _island_bytes(arch, landing)
    start, at = range_[0].address, moved.address - n_island
    island = _island(arch, at, landing, moved.address)
    trampoline = island.ljust(n_island, b"\0") + moved.code
    if len(trampoline) > TRAMPOLINE_BYTES:
        raise CannotRelocate(f"its moved instructions take {len(trampoline)} bytes")
    moves = zip(range_[1:], moved.starts[1:], strict=True)
    return PatchPlan(
        name=function.name,
        address=start,
        expected=(b"".join(one.code for one in range_) + function.padding)[: len(patch)],
        patch=patch,
        trampoline_address=at,
        trampoline=trampoline,
        original=moved.address,
        moves=tuple((one.address, moved.address + offset) for one, offset in moves),
        returns=tuple((start + step, start) for step in range(arch.step, len(patch), arch.step)),
        scratch=moved.scratch | arch.scratch,
    )
