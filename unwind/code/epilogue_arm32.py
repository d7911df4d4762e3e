"""Rules for arm32 code read off the instructions between the pc and the function's return, as epilogue_arm64.py does it.

The exception index has one row per function, right where calls are made; most code of a prologue, an epilogue and of
functions without an entry can only be unwound by their code. A register that is not loaded on the path
to the return holds its caller's value there already: the procedure call standard demands it (AAPCS32 §6.1.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.decode_arm32 import ALWAYS, LR, Flow, Operation, decode_arm, decode_thumb
from memleak_android.unwind.code.prologue_arm32 import ReadCode, is_arm, may_be_arm
from memleak_android.unwind.code.stack_arm32 import State, after
from memleak_android.unwind.trace import Method

_INSTRUCTIONS_MAX = 2048
_BYTES_READ = 64  # at once
_COVERED = 15  # the condition of an IT block, whichever it is
_RETURNS = (Flow.RETURN, Flow.BY_REGISTER)
_BRANCHES = (Flow.JUMP, Flow.CONDITIONAL, Flow.TABLE)
_CONTINUES = (Flow.NEXT, Flow.CALL, Flow.CONDITIONAL)


def walk_arm32(arch: Arch, read: ReadCode, vaddr: int) -> UnwindRow | None:
    """The rules at vaddr; None if no return was found."""
    if is_arm(read, vaddr):
        return _Walk(arch, read, decode_arm).run(vaddr)
    found = _Walk(arch, read, decode_arm).run(vaddr) if may_be_arm(read, vaddr) else None
    return found or _Walk(arch, read, decode_thumb).run(vaddr)


class _Path(NamedTuple):
    """A path through the code. covered: instructions left in an IT block."""

    at: int
    covered: int
    state: State

    def behind(self, operation: Operation, state: State) -> _Path:
        return _Path(self.at + operation.size, operation.covers or max(self.covered - 1, 0), state)


class _Walk:
    """Walks all paths from an address, the straight one first, until one returns."""

    def __init__(self, arch: Arch, read: ReadCode, decode: Callable[[bytes, int], Operation]) -> None:
        self._arch = arch
        self._read = read
        self._decode = decode
        self._seen: set[tuple[int, tuple[int, bool] | None]] = set()
        self._open: list[_Path] = []
        self._window, self._window_at = b"", 0

    def _code(self, at: int) -> bytes:
        """4 bytes at a vaddr, fewer at the end of the file."""
        offset = at - self._window_at
        if not 0 <= offset <= len(self._window) - 4:
            self._window, self._window_at, offset = self._read(at, _BYTES_READ), at, 0
        return self._window[offset : offset + 4]

    def run(self, vaddr: int) -> UnwindRow | None:
        self._open = [_Path(vaddr & ~1, 0, State())]
        while self._open:
            path: _Path | None = self._open.pop()
            while path is not None:
                been = path.at, path.state.assumed
                if len(self._seen) >= _INSTRUCTIONS_MAX or been in self._seen:
                    break
                self._seen.add(been)
                found = self._step(path)
                if isinstance(found, UnwindRow):
                    return found
                path = found
        return None

    def _step(self, path: _Path) -> _Path | UnwindRow | None:
        """Walks one instruction: returns the path behind it, the rules, or None if the path ends."""
        at, covered, state = path
        operation = self._decode(self._code(at), at)
        flow = operation.flow
        condition = operation.condition if not covered else _COVERED
        is_open = condition != ALWAYS and state.assumed != (condition, True)
        if state.assumed == (condition, False):
            return path.behind(operation, state)
        done = after(state, operation)
        if is_open and flow is Flow.NEXT and done is not None and done.stack_pointer != state.stack_pointer:
            self._open.append(path.behind(operation, replace(state, assumed=(condition, False))))
            done = replace(done, assumed=(condition, True))
        if flow in _RETURNS and done is not None:
            row = _row(self._arch, done)
            if row is not None and (flow is Flow.RETURN or state.has_loaded_link):
                return row
        if flow in _BRANCHES:
            self._open.append(_Path(_target(self._read, operation), 0, state))
        if flow is Flow.CONDITIONAL and state.assumed == (condition, True):
            return None
        if flow in _CONTINUES:
            return None if done is None else path.behind(operation, done)
        return path.behind(operation, state) if is_open else None  # the condition does not hold


def _target(read: ReadCode, operation: Operation) -> int:
    """The target of a branch; of a switch, its first case (tbb, tbh: halfword counts; others: addresses)."""
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
