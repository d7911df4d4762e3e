"""Rules for arm64 code without CFI, read off the instructions between the pc and the function's return.

As epilogue.py does it for x86_64, over the fixed 4-byte encodings (Arm ARM, C4.1): what happens to the stack
pointer, where x29, x30 and the callee-saved registers are loaded from, until `ret` or a tail call. A function that
has not saved x30 yet, or never does, keeps its return address there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.decode_arm32 import Flow, signed
from memleak_android.unwind.trace import Method

_INSTRUCTIONS_MAX = 512
_FP, _LR, _SP = 29, 30, 31
_KEPT = frozenset(range(19, 31))
ReadCode = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class _State:
    """The stack pointer is `base` (sp or x29 as they are at the pc) + delta.

    saved: register → offset from `base`, of the word it is loaded from. lost: written otherwise.
    constants: register → number, of what moves the stack pointer further than an immediate can.
    """

    at: int
    base: int = _SP
    delta: int = 0
    saved: tuple[tuple[int, int], ...] = ()
    lost: frozenset[int] = frozenset()
    is_signed: bool = False
    constants: tuple[tuple[int, int], ...] = ()

    def loads(self, register: int, offset: int) -> _State:
        kept = tuple(slot for slot in self.saved if slot[0] != register)
        return replace(self, saved=(*kept, (register, offset)), lost=self.lost - {register})

    def loses(self, register: int) -> _State:
        kept = tuple(slot for slot in self.saved if slot[0] != register)
        return replace(self, saved=kept, lost=self.lost | {register})


def walk_arm64(arch: Arch, read: ReadCode, vaddr: int) -> UnwindRow | None:
    """The rules at vaddr; None where no return was found."""
    open_ = [_State(vaddr & ~3)]
    seen: set[int] = set()
    while open_:
        state: _State | None = open_.pop()
        while state is not None and len(seen) < _INSTRUCTIONS_MAX and state.at not in seen:
            seen.add(state.at)
            code = read(state.at, 4)
            if len(code) < 4:
                break
            (word,) = struct.unpack("<I", code)
            flow, target = _flow(word, state.at)
            if flow is Flow.RETURN:
                row = _row(arch, replace(state, is_signed=state.is_signed or word & 0x0800 != 0))
                if row is not None:
                    return row
                break
            if flow in (Flow.JUMP, Flow.CONDITIONAL):
                open_.append(replace(state, at=target))
            if flow in (Flow.JUMP, Flow.DEAD_END):
                break
            if _LR in state.lost and _begins_function(word):
                break  # the call before it does not return
            after = state.loses(_LR) if flow is Flow.CALL else _effect(state, word)
            constants = () if flow is Flow.CALL else _constants(state, word)
            state = None if after is None else replace(after, at=state.at + 4, constants=constants)
    return None


def _begins_function(word: int) -> bool:
    """paciasp, pacibsp, bti c, or a store of x30: what is done with a return address that is new."""
    is_pair = word & 0x7E40_7C00 == 0x2800_7800 or (word & 0x7E40_001F) == 0x2800_001E
    is_single = word & 0xFFE0_001F == 0xF800_001E or word & 0xFFC0_001F == 0xF900_001E
    return word in (0xD503_233F, 0xD503_237F, 0xD503_245F) or is_pair or is_single


def _flow(word: int, at: int) -> tuple[Flow, int]:
    if word >> 26 == 0b000101:  # b
        return Flow.JUMP, at + 4 * signed(word, 26)
    if word >> 26 == 0b100101 or word & 0xFEFF_F000 == 0xD63F_0000:  # bl, blr, blraa …
        return Flow.CALL, 0
    if word & 0xFF00_0010 == 0x5400_0000 or word & 0x7E00_0000 == 0x3400_0000:  # b.cond, cbz, cbnz
        return Flow.CONDITIONAL, at + 4 * signed(word >> 5, 19)
    if word & 0x7E00_0000 == 0x3600_0000:  # tbz, tbnz
        return Flow.CONDITIONAL, at + 4 * signed(word >> 5, 14)
    if word & 0xFFFF_F01F == 0xD65F_0000 or word & 0xFFFF_FBFF == 0xD65F_0BFF:  # ret, retaa, retab
        return Flow.RETURN, 0
    if word in (0xD61F_0200, 0xD61F_0220):  # br x16, br x17: a tail call
        return Flow.RETURN, 0
    if word & 0xFEFF_F000 == 0xD61F_0000:  # another br
        return Flow.DEAD_END, 0
    if word & 0xFFE0_001F == 0xD420_0000 or word >> 16 == 0:  # brk, udf
        return Flow.DEAD_END, 0
    return Flow.NEXT, 0


def _effect(state: _State, word: int) -> _State | None:
    """The state after an instruction that goes on to the next, None when the stack pointer is lost."""
    if word in (0xD503_23BF, 0xD503_23FF, 0xD503_20FF):  # autiasp, autibsp, xpaclri
        return replace(state, is_signed=True)
    group = word >> 25 & 0xF
    if group in (0b1000, 0b1001):
        return _immediate(state, word)
    if group & 0b0101 == 0b0100:
        return _load_store(state, word)
    rd = word & 31
    if word & 0x3F20_0000 == 0x0B20_0000 and rd == _SP:  # add, sub (extended register) to sp
        return _by_constant(state, word)
    return state.loses(rd) if group & 0b0111 == 0b0101 and rd in _KEPT else state


def _constants(state: _State, word: int) -> tuple[tuple[int, int], ...]:
    """Known values of scratch registers after an instruction, set by movz and movk until any other write."""
    rd, hw, number = word & 31, word >> 21 & 3, word >> 5 & 0xFFFF
    before = dict(state.constants).get(rd)
    written = (rd, word >> 10 & 31)  # a load of a pair writes two
    known = tuple(c for c in state.constants if c[0] not in written)
    if word & 0xFF80_0000 == 0xD280_0000:
        return (*known, (rd, number << 16 * hw))
    if word & 0xFF80_0000 == 0xF280_0000 and before is not None:
        return (*known, (rd, before & ~(0xFFFF << 16 * hw) | number << 16 * hw))
    return known


def _by_constant(state: _State, word: int) -> _State | None:
    """add, sub sp, sp, xN: how frames of more than 4095 bytes end."""
    number = dict(state.constants).get(word >> 16 & 31)
    if number is None or word & 0xBFE0_FFFF != 0x8B20_63FF:
        return None
    return replace(state, delta=state.delta + (-number if word & 0x4000_0000 else number))


def _immediate(state: _State, word: int) -> _State | None:
    rd, rn = word & 31, word >> 5 & 31
    if word & 0x1F80_0000 == 0x1100_0000 and word >> 31:  # add, sub (immediate), 64 bits
        if rd != _SP or word & 0x2000_0000:
            return state.loses(rd) if rd in _KEPT else state
        amount = (word >> 10 & 0xFFF) << (12 if word & 0x40_0000 else 0)
        distance = -amount if word & 0x4000_0000 else amount
        if rn == _SP:
            return replace(state, delta=state.delta + distance)
        if rn == _FP and _is_intact(state, _FP):
            for register, _ in state.saved if state.base != _FP else ():
                state = state.loses(register)
            return replace(state, base=_FP, delta=distance)
        return None
    if rd == _SP and word & 0x1F80_0000 == 0x1200_0000 and word >> 29 & 3 != 3:  # and sp, …: realigned
        return None
    return state.loses(rd) if rd in _KEPT else state


def _load_store(state: _State, word: int) -> _State:
    """Loads and stores of pairs and single registers; slots are tracked if based on sp (or x29)."""
    rt, rn = word & 31, word >> 5 & 31
    is_vector = word >> 26 & 1
    if word & 0x3A00_0000 == 0x2800_0000:  # stp, ldp
        scale = (2 + (word >> 30)) if is_vector else 3 if word >> 31 else 2
        offset = signed(word >> 15, 7) << scale
        mode, is_load = word >> 23 & 3, word >> 22 & 1  # mode 1: post-index, 2: offset, 3: pre-index
        registers: tuple[int, ...] = (rt, word >> 10 & 31)
        step = 1 << scale
    elif word & 0x3B20_0000 == 0x3800_0000:  # ldr, str with a 9-bit offset
        scale, offset, step = word >> 30, signed(word >> 12, 9), 8
        mode, is_load, registers = (2, 1, 2, 3)[word >> 10 & 3], word >> 22 & 3, (rt,)
    elif word & 0x3B00_0000 == 0x3900_0000:  # ldr, str with a scaled 12-bit offset
        scale, step = word >> 30, 8
        offset = (word >> 10 & 0xFFF) << scale
        mode, is_load, registers = 2, word >> 22 & 3, (rt,)
    else:
        return state.loses(rt) if rt in _KEPT and word >> 22 & 1 and not is_vector else state
    first = 0 if mode == 1 else offset
    origin = state.delta if rn == _SP else 0
    is_known = rn == _SP or (rn == state.base and _is_intact(state, rn))
    if is_load and not is_vector:
        for i, register in enumerate(registers):
            if register in _KEPT:
                is_word = scale == 3 and is_known
                state = state.loads(register, origin + first + i * step) if is_word else state.loses(register)
    if mode in (1, 3):
        if rn == _SP:
            return replace(state, delta=state.delta + offset)
        return state.loses(rn) if rn in _KEPT else state
    return state


def _is_intact(state: _State, register: int) -> bool:
    return register not in state.lost and all(register != r for r, _ in state.saved)


def _row(arch: Arch, state: _State) -> UnwindRow | None:
    if _LR in state.lost:
        return None
    # a word below the stack pointer is yet to be stored, and holds what the register holds now
    saved = [slot for slot in state.saved if state.base != _SP or slot[1] >= 0]
    rules = [RegisterRule(r, RuleKind.OFFSET, offset - state.delta) for r, offset in saved]
    rules += [RegisterRule(r, RuleKind.UNDEFINED) for r in state.lost]
    return UnwindRow(
        state.base,
        state.delta,
        b"",
        tuple(sorted(rules)),
        arch.return_register,
        False,
        Method.PROLOGUE,
        state.is_signed,
    )
