"""Stack state of arm32 code during a walk of its instructions: the stack pointer and the saved registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memleak_android.unwind.code.decode_arm32 import LR, SP, Flow, Move, Operation, Transfer

_KEPT = frozenset({4, 5, 6, 7, 8, 9, 10, 11, LR})
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class State:
    """The stack pointer is `base` (a register as it is at the pc) + delta, or not known for a while.

    copies: register → (base, offset): other registers that point into the stack.
    saved: register → offset from `base` of the word it was loaded from. stored: the same of what was stored on the
    way, so that the word does not hold it yet. unknown: loaded from elsewhere.
    assumed: a condition and whether it holds, since something depended on it that moves the stack pointer.
    """

    base: int = SP
    delta: int = 0
    is_sp_lost: bool = False
    copies: tuple[tuple[int, Pair], ...] = tuple((n, (n, 0)) for n in range(4, 12))
    saved: tuple[Pair, ...] = ()
    stored: frozenset[Pair] = frozenset()
    unknown: frozenset[int] = frozenset()
    is_link_lost: bool = False
    has_loaded_link: bool = False
    assumed: tuple[int, bool] | None = None

    @property
    def stack_pointer(self) -> tuple[bool, int, int]:
        return self.is_sp_lost, self.base, self.delta

    def value_of(self, register: int) -> Pair | None:
        if register == SP:
            return None if self.is_sp_lost else (self.base, self.delta)
        return dict(self.copies).get(register)

    def without_copy(self, register: int) -> State:
        if register not in [copied for copied, _ in self.copies]:
            return self
        return replace(self, copies=tuple(c for c in self.copies if c[0] != register))


def after(state: State, operation: Operation) -> State | None:
    """The state after an operation, often the same object. None: another function begins."""
    if operation.flow is Flow.CALL:
        if state.is_link_lost and LR not in [saved for saved, _ in state.saved]:
            return state
        return replace(state, is_link_lost=True, saved=tuple(s for s in state.saved if s[0] != LR))
    effect = operation.effect
    if isinstance(effect, Move):
        return _moved(state, effect)
    if isinstance(effect, Transfer):
        return _transferred(state, effect)
    return state


def _moved(state: State, move: Move) -> State:
    value = state.value_of(move.rn) if move.rn >= 0 else None
    if move.rd != SP:
        state = state.without_copy(move.rd)
        if value is None:
            return state
        return replace(state, copies=(*state.copies, (move.rd, (value[0], value[1] + move.distance))))
    if value is None:
        return replace(state, is_sp_lost=True)
    base, offset = value[0], value[1] + move.distance
    if base != state.base:
        lost = frozenset(register for register, _ in state.saved)
        state = replace(state, base=base, saved=(), stored=frozenset(), unknown=state.unknown | lost)
    return replace(state, delta=offset, is_sp_lost=False)


def _transferred(state: State, transfer: Transfer) -> State | None:
    value = state.value_of(transfer.rn)
    if transfer.is_load and SP in transfer.registers:  # a block of variable length is given back
        state = replace(state, is_sp_lost=True)
    for i, register in enumerate(transfer.registers):
        if register not in _KEPT:
            continue
        slot = None
        if value is not None and value[0] == state.base:
            slot = value[1] + transfer.offset + 4 * i
        if transfer.is_load:
            state = _loaded(state, register, slot)
        elif register == LR and state.is_link_lost and transfer.rn == SP:
            return None  # the call before it does not return: here begins another function
        elif slot is not None and register not in dict(state.saved):
            state = replace(state, stored=state.stored | {(register, slot)})
    if transfer.step:
        return _moved(state, Move(transfer.rn, transfer.rn, transfer.step))
    return state


def _loaded(state: State, register: int, slot: int | None) -> State:
    state = state.without_copy(register)
    saved = tuple(s for s in state.saved if s[0] != register)
    unknown = state.unknown - {register}
    if register == LR:
        state = replace(state, is_link_lost=False, has_loaded_link=slot is not None)
    if slot is None:
        unknown |= {register}
    elif (register, slot) not in state.stored:
        saved = (*saved, (register, slot))
    return replace(state, saved=saved, unknown=unknown)
