"""Instructions that leave a function, as probe sites that keep its return address intact.

A return probe replaces the return address by the kernel's trampoline. Unwinders do not know it, so an exception that passes
such a frame ends the program.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.slots import slot_names
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.function_extents import FunctionExtents
from memleak_android.host.tracers.probes.placement import FUNCTION_BYTES_MAX, is_tail_call
from memleak_android.unwind.code.disassembly import Flow, Instruction

_SITES_MAX = 64
_PARTS_MAX = 8
_STUB_BYTES = 24  # with a landing pad


@dataclass(frozen=True, slots=True)
class ReturnSites:
    """File offsets.

    refusal: why they are unknown, "" if known; with a refusal there are none.
    continued_in: names of functions, of another file maybe, in which it ends.
    called: those that it calls; "" = one whose name is not known.
    """

    returns: tuple[int, ...] = ()
    tails: tuple[int, ...] = ()
    refusal: str = ""
    continued_in: tuple[str, ...] = ()
    called: tuple[str, ...] = ()


def calls_nothing(elf: ElfFile, file_offset: int, size: int) -> bool:
    """Tests whether the function calls nothing, so that no exception can pass it."""
    instructions = _decode(elf, file_offset, size)
    if not instructions or instructions[-1].end != file_offset + size:
        return False
    inside = range(file_offset, file_offset + size)
    return not any(
        each.flow is Flow.CALL or _leaves(elf, [inside], instructions[:i], each)
        for i, each in enumerate(instructions)
    )


def find_return_sites(
    elf: ElfFile, file_offset: int, size: int, parts: Sequence[range], stubs: Collection[int] = ()
) -> ReturnSites:
    """Finds the instructions that leave a function.

    parts: file offsets of its code elsewhere (`name.cold`). stubs: those of code to which a jump counts as none.
    """
    if not 0 < size <= FUNCTION_BYTES_MAX:
        return ReturnSites(refusal="its size is unknown")
    own = [range(file_offset, file_offset + size), *parts]
    returns: list[int] = []
    tails: list[int] = []
    for piece in own:
        instructions = _decode(elf, piece.start, len(piece))
        if not instructions or instructions[-1].end != piece.stop:
            return ReturnSites(refusal="it cannot be decoded")
        for i, instruction in enumerate(instructions):
            leaves = instruction.target not in stubs and _leaves(elf, own, instructions[:i], instruction)
            if leaves and instruction.flow is Flow.CONDITIONAL:
                return ReturnSites(
                    refusal=f"`{instruction.mnemonic}` is a conditional jump to another function"
                )
            if instruction.flow is Flow.RETURN:
                returns.append(instruction.address)
            elif leaves:
                tails.append(instruction.address)
    if file_offset in tails:  # where its entry is probed
        return ReturnSites(refusal="it is a jump to another function")
    if len(returns) + len(tails) > _SITES_MAX:
        return ReturnSites(refusal=f"it has {len(returns) + len(tails)} exits")
    if not returns and not tails and not stubs:
        return ReturnSites(refusal="it never returns")
    return ReturnSites(tuple(returns), tuple(tails))


def find_sites_with_parts(
    elf: ElfFile, file_offset: int, size: int, parts: Sequence[range], extents: FunctionExtents
) -> ReturnSites:
    """The same, where it jumps on a condition to code that no symbol tells to be its own: a stripped file's `name.cold`.

    If that is another function, its exits end this call, too.
    """
    found = [*parts]
    own = range(file_offset, file_offset + size)
    while (outside := _jump_outside(elf, [own, *found], (), [Flow.CONDITIONAL])) is not None:
        part = _part_around(elf, outside, extents)
        if part is None or len(found) == _PARTS_MAX:
            return ReturnSites(refusal="it ends in code whose extent is unknown")
        found.append(part)
    return find_return_sites(elf, file_offset, size, found)


def find_exits(
    elf: ElfFile, file_offset: int, size: int, extents: FunctionExtents, known: Collection[str] = ()
) -> ReturnSites:
    """Finds the instructions that end a call of the function, also in the functions of its file to which it jumps.

    Calls of those functions pass the same instructions. No tails are returned: the refusal or `continued_in` tells of them.
    known: names of functions whose own exits are found, too.
    """
    parts: list[range] = []
    stubs: dict[int, str] = {}
    own = range(file_offset, file_offset + size)
    while (outside := _jump_outside(elf, [own, *parts], stubs, [Flow.JUMP, Flow.CONDITIONAL])) is not None:
        if name := _called_by_stub(elf, outside):
            stubs[outside] = name
            own_function = None if name in known else _function_of(elf, name)
            if own_function is None:
                continue
            stubs[outside] = ""
            part: range | None = own_function
        else:
            part = _part_around(elf, outside, extents)
        if part is None or len(parts) == _PARTS_MAX:
            return ReturnSites(refusal="it ends in code whose extent is unknown")
        parts.append(part)
    found = find_return_sites(elf, file_offset, size, parts, stubs)
    if found.tails:
        return ReturnSites(refusal="it ends in a function that it chooses at run time")
    continued_in = tuple(sorted({name for name in stubs.values() if name}))
    return replace(found, continued_in=continued_in, called=_called(elf, [own, *parts]))


def _called(elf: ElfFile, pieces: Sequence[range]) -> tuple[str, ...]:
    calls = [
        each for piece in pieces for each in _decode(elf, piece.start, len(piece)) if each.flow is Flow.CALL
    ]
    return tuple(sorted({"" if each.target is None else _called_by_stub(elf, each.target) for each in calls}))


def _jump_outside(
    elf: ElfFile, own: Sequence[range], stubs: Collection[int], flows: Collection[Flow]
) -> int | None:
    """The file offset to which the first jump out of these pieces leads, jumps to stubs aside."""
    jumps = (
        each.target
        for piece in own
        for each in _decode(elf, piece.start, len(piece))
        if each.flow in flows and each.target is not None
    )
    return next(
        (at for at in jumps if at not in stubs and not any(at in piece for piece in own)),
        None,
    )


def _called_by_stub(elf: ElfFile, file_offset: int) -> str:
    """The function to whose slot the code jumps at once, as the linker's stubs (.plt) do; "" where it does not."""
    text, page, slot = elf.text_segment(file_offset), 0, 0
    if text is None:
        return ""
    bias = text.vaddr - text.file_offset  # the code is decoded with file offsets as addresses
    for each in _decode(elf, file_offset, _STUB_BYTES):
        if each.mnemonic == "adrp":  # arm64: adrp x16; ldr x17, [x16, …]; add; br x17
            page = int(each.operands.rpartition("#")[2], 16)
        elif each.memory and (each.memory[0].base == "rip" or page):
            slot = each.memory[0].displacement + (page or each.end) + bias
        if each.flow is not Flow.NEXT:
            return slot_names(elf).get(slot, "") if slot and each.flow is Flow.JUMP else ""
    return ""


def _function_of(elf: ElfFile, name: str) -> range | None:
    """The file's own function, in file offsets: what its stub leads to, if no other file's takes its place."""
    for symbol in elf.dynamic_functions({name}):
        offset = elf.file_offset(symbol.vaddr)
        if offset is not None and symbol.size and not symbol.is_indirect:
            return range(offset, offset + symbol.size)
    return None


def _part_around(elf: ElfFile, file_offset: int, extents: FunctionExtents) -> range | None:
    """The function that holds the byte at file_offset, in file offsets."""
    text = elf.text_segment(file_offset)
    if text is None:
        return None
    bias = text.vaddr - text.file_offset
    found = extents.around(file_offset + bias)
    return None if found is None else range(found.start - bias, found.stop - bias)


def _decode(elf: ElfFile, file_offset: int, size: int) -> list[Instruction]:
    """Decodes with file offsets as addresses: jumps stay inside one segment."""
    if size > FUNCTION_BYTES_MAX:
        return []
    return list(PROBED_ARCHES[elf.machine].decode(elf.slice(file_offset, size), file_offset))


def _leaves(elf: ElfFile, own: Sequence[range], before: list[Instruction], one: Instruction) -> bool:
    if one.flow not in (Flow.JUMP, Flow.CONDITIONAL):
        return False
    if one.target is not None:
        return not any(one.target in piece for piece in own)
    return is_tail_call(before, one)
