"""Rules for code without CFI, read off the machine code between the pc and the function's return.

The walk simulates what the instructions ahead do to the stack pointer until a `ret`: there the return address
lies at the top. Conditional branches are tried both ways, direct jumps are followed, calls change nothing.
The result is a guess: a call may never return, and then the code behind it belongs to another function.
So the unwinder accepts it only if the return address follows a call instruction.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.disassembly import Flow, Instruction, decode_x86_64
from memleak_android.unwind.code.epilogue_arm32 import walk_arm32
from memleak_android.unwind.code.epilogue_arm64 import walk_arm64
from memleak_android.unwind.code.prologue_arm32 import prologue_arm32
from memleak_android.unwind.trace import Method

_INSTRUCTIONS_MAX = 512  # in all; musl's longest path to a ret has some hundreds
_BYTES_READ = 64  # at once: compilers leave few longer stretches without a branch
_IMMEDIATE = re.compile(r"rsp, (-?(?:0x)?[0-9a-f]+)$")
_ADDRESS = re.compile(r"rsp, \[(rsp|rbp)(?: ([+-]) (0x[0-9a-f]+|\d+))?\]$")
_WORD = 8
_LOST = ""  # base of a stack pointer that is not known: the walk goes on to see where it ends
ReadCode = Callable[[int, int], bytes]


class Dead(Enum):
    """How a walk can end without rules."""

    NO_RETURN = "no return found"
    USES_FRAME_POINTER = "no return found, but memory is addressed, or the frame left, by the frame pointer"
    STOPS = "nothing but hlt, ud2 or another stack lies ahead: this never returns"
    EXITS = "goes straight to a call of exit or pthread_exit: this frame is the thread's start"


@dataclass(frozen=True, slots=True)
class _State:
    """State of a walk. The stack pointer is base + delta; base: a register's value at the walk's first pc.

    saved: callee-saved register → (base, offset) of the slot that it is popped from. lost: overwritten.
    """

    at: int
    base: str = "rsp"
    delta: int = 0
    saved: dict[str, tuple[str, int]] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()


def walk_to_return(
    arch: Arch, read: ReadCode, vaddr: int, is_exit: Callable[[int], bool]
) -> UnwindRow | Dead:
    """The rules at vaddr, or why there are none. is_exit: of a vaddr, whether it is that of exit or pthread_exit.

    A thread's start is `exit(main(…))`: the result of the call goes straight to exit. An exit or a hlt behind a
    branch is an error path, unless all paths end so (glibc's __start_context(), below the function of a makecontext()).
    """
    if arch.name not in _CALLEE_SAVED:
        walk = _OTHER_WALKS.get(arch.name)
        found = walk(arch, read, vaddr) if walk is not None else None
        return found or Dead.USES_FRAME_POINTER  # not known; the step is guarded
    open_ = [_State(vaddr)]
    seen: set[int] = set()
    only_stops = is_straight = True
    n_exits = n_others = 0  # ends of paths, but for those that go on in another
    uses_frame_pointer = False
    while open_:
        state = open_.pop()
        flow, is_exiting, is_joined = Flow.NEXT, False, False
        for instruction in _instructions(read, state.at):
            flow = instruction.flow
            if len(seen) >= _INSTRUCTIONS_MAX or instruction.address in seen:
                is_joined = len(seen) < _INSTRUCTIONS_MAX
                break
            seen.add(instruction.address)
            uses_frame_pointer |= _is_intact(state, "rbp") and (
                instruction.mnemonic == "leave" or any(m.base == "rbp" for m in instruction.memory)
            )
            if flow is Flow.CALL and instruction.target is not None and is_exit(instruction.target):
                if is_straight:
                    return Dead.EXITS
                is_exiting = True
                break
            if flow is Flow.RETURN and state.base == _LOST:
                break
            if flow is Flow.RETURN:
                return _row(arch, state)
            if flow is Flow.JUMP and instruction.target is not None:
                open_.append(replace(state, at=instruction.target))
                is_joined = True
            elif flow is Flow.CONDITIONAL and instruction.target is not None:
                open_.append(replace(state, at=instruction.target))
                is_straight = False
                continue
            if flow in (Flow.JUMP, Flow.STOP):
                break
            after = state if flow in (Flow.CALL, Flow.SYSTEM) else _effect(arch, state, instruction)
            state = after or replace(state, base=_LOST)
        only_stops &= flow is Flow.STOP or (state.base == _LOST and not is_exiting)
        n_exits += is_exiting
        n_others += not (is_exiting or is_joined)
    if only_stops and is_straight:
        return Dead.STOPS
    if n_exits and not n_others:
        return Dead.EXITS
    return Dead.USES_FRAME_POINTER if uses_frame_pointer else Dead.NO_RETURN


def read_prologue(arch: Arch, read: ReadCode, vaddr: int) -> UnwindRow | None:
    """The rules at vaddr by the instructions that a function began with; None: not known for this architecture."""
    reader = _PROLOGUES.get(arch.name)
    return None if reader is None else reader(arch, read, vaddr)


def _instructions(read: ReadCode, at: int) -> Iterator[Instruction]:
    while True:
        start = at
        for instruction in decode_x86_64(read(at, _BYTES_READ), at):
            at = instruction.end
            yield instruction
        if at == start:
            return


def _effect(arch: Arch, state: _State, instruction: Instruction) -> _State | None:
    """The state after an instruction that goes on to the next, None when the stack pointer is lost."""
    mnemonic, operands = instruction.mnemonic, instruction.operands
    if mnemonic == "push":
        return replace(state, delta=state.delta - _WORD)
    if mnemonic == "pop" and operands != "rsp":
        saved = {**state.saved, operands: (state.base, state.delta)}
        return replace(state, delta=state.delta + _WORD, saved=saved, lost=state.lost - {operands})
    if mnemonic == "leave" and _is_intact(state, "rbp"):
        return replace(state, base="rbp", delta=_WORD, saved={**state.saved, "rbp": ("rbp", 0)})
    if "rsp" in instruction.writes:
        return _new_stack_pointer(state, mnemonic, operands)
    written = instruction.writes & _CALLEE_SAVED[arch.name]
    if not written:
        return state
    kept = {name: slot for name, slot in state.saved.items() if name not in written}
    return replace(state, saved=kept, lost=state.lost | written)


def _new_stack_pointer(state: _State, mnemonic: str, operands: str) -> _State | None:
    if mnemonic in ("add", "sub") and (match := _IMMEDIATE.match(operands)):
        distance = int(match[1], 0)
        return replace(state, delta=state.delta + (distance if mnemonic == "add" else -distance))
    if mnemonic == "mov" and operands == "rsp, rbp" and _is_intact(state, "rbp"):
        return replace(state, base="rbp", delta=0)
    if mnemonic == "lea" and (match := _ADDRESS.match(operands)):
        distance = int(match[3] or "0", 0) * (-1 if match[2] == "-" else 1)
        if match[1] == "rsp":
            return replace(state, delta=state.delta + distance)
        if _is_intact(state, "rbp"):
            return replace(state, base="rbp", delta=distance)
    return None


def _is_intact(state: _State, name: str) -> bool:
    return name not in state.lost and name not in state.saved


def _row(arch: Arch, state: _State) -> UnwindRow:
    """CFA = base + delta + one word; the return address lies below it."""
    cfa = state.delta + _WORD
    rules = [RegisterRule(arch.return_register, RuleKind.OFFSET, -_WORD)]
    for name in _CALLEE_SAVED[arch.name]:
        number = arch.dwarf_of(arch.slot(name))
        base, offset = state.saved.get(name, ("", 0))
        if base == state.base:
            rules.append(RegisterRule(number, RuleKind.OFFSET, offset - cfa))
        elif base or name in state.lost:
            rules.append(RegisterRule(number, RuleKind.UNDEFINED))
    start = arch.dwarf_of(arch.slot(state.base))
    return UnwindRow(start, cfa, b"", tuple(sorted(rules)), arch.return_register, False, Method.PROLOGUE)


_OTHER_WALKS = {"arm64": walk_arm64, "arm32": walk_arm32}
_PROLOGUES = {"arm32": prologue_arm32}
_CALLEE_SAVED = {"x86_64": frozenset({"rbp", "rbx", "r12", "r13", "r14", "r15"})}
