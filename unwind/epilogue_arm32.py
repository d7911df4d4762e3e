"""Rules for arm32 code read off the instructions between the pc and the function's return, as epilogue_arm64.py does it.

The exception index has one row per function, right where calls are made; most code of a prologue, an epilogue and of
functions without an entry can only be stepped out of by what the code says. A register that is not loaded on the way
to the return holds its caller's value there already: the procedure call standard demands it (AAPCS32 §6.1.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.decode_arm32 import ALWAYS, LR, Flow, Operation, decode_arm, decode_thumb
from memleak_android.unwind.instruction_set_arm32 import ReadCode, is_arm, may_be_arm
from memleak_android.unwind.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.stack_arm32 import State, after
from memleak_android.unwind.trace import Method

_INSTRUCTIONS_MAX = 2048
_COVERED = 15  # stands for the condition of an IT


def walk_arm32(arch: Arch, read: ReadCode, vaddr: int) -> UnwindRow | None:
    """The rules at vaddr; None where no return was found."""
    if is_arm(read, vaddr):
        return _Walk(arch, read, decode_arm).run(vaddr)
    found = _Walk(arch, read, decode_arm).run(vaddr) if may_be_arm(read, vaddr) else None
    return found or _Walk(arch, read, decode_thumb).run(vaddr)


class _Walk:
    """All ways from one address on, the straight one first, until one returns."""

    def __init__(self, arch: Arch, read: ReadCode, decode: Callable[[bytes, int], Operation]) -> None:
        self._arch = arch
        self._read = read
        self._decode = decode
        self._seen: set[tuple[int, tuple[int, bool] | None]] = set()
        self._open: list[State] = []

    def run(self, vaddr: int) -> UnwindRow | None:
        self._open = [State(vaddr & ~1)]
        while self._open:
            state: State | None = self._open.pop()
            while state is not None:
                if len(self._seen) >= _INSTRUCTIONS_MAX or (state.at, state.assumed) in self._seen:
                    break
                self._seen.add((state.at, state.assumed))
                found = self._step(state)
                if isinstance(found, UnwindRow):
                    return found
                state = found
        return None

    def _step(self, state: State) -> State | UnwindRow | None:
        """What one instruction leads to: the next, the rules, or nothing more this way."""
        operation = self._decode(self._read(state.at, 4), state.at)
        condition = operation.condition if not state.covered else _COVERED
        is_open = condition != ALWAYS and state.assumed != (condition, True)
        if state.assumed == (condition, False):
            return state.behind(operation)
        done = after(state.behind(operation), operation)
        if is_open and operation.flow is Flow.NEXT and done is not None and done.stands != state.stands:
            self._open.append(replace(state.behind(operation), assumed=(condition, False)))
            done = replace(done, assumed=(condition, True))
        if operation.flow in (Flow.RETURN, Flow.BY_REGISTER) and done is not None:
            row = _row(self._arch, done)
            if row is not None and (operation.flow is Flow.RETURN or state.has_loaded_link):
                return row
        if operation.flow in (Flow.JUMP, Flow.CONDITIONAL, Flow.TABLE):
            self._open.append(replace(state, at=_target(self._read, operation), covered=0))
        if operation.flow is Flow.CONDITIONAL and state.assumed == (condition, True):
            return None
        if operation.flow in (Flow.NEXT, Flow.CALL, Flow.CONDITIONAL):
            return done
        return state.behind(operation) if is_open else None  # the condition does not hold


def _target(read: ReadCode, operation: Operation) -> int:
    """Of a switch the first case: tables of halfword counts for tbb and tbh, of addresses for others."""
    if operation.flow is not Flow.TABLE:
        return operation.target
    number = int.from_bytes(read(operation.target, operation.entry), "little")
    return number & ~1 if operation.entry == 4 else operation.target + 2 * number


def _row(arch: Arch, state: State) -> UnwindRow | None:
    if state.is_sp_lost or state.is_link_lost or LR in state.unknown:
        return None
    rules = [RegisterRule(r, RuleKind.OFFSET, slot - state.delta) for r, slot in state.saved]
    rules += [RegisterRule(r, RuleKind.UNDEFINED) for r in state.unknown]
    return UnwindRow(
        state.base, state.delta, b"", tuple(sorted(rules)), arch.return_register, False, Method.PROLOGUE
    )
