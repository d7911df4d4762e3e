"""Rules for arm32 code without a reachable return, from the prologue before it.

Code that ends in longjmp, abort or a jump table of its own has no epilogue. The nearest push of the link register
before the pc is taken as the function's first; the code up to the next branch then gives the frame layout.
This is a guess, accepted by the unwinder only if the return address follows a call instruction.
"""

import re
from collections import Counter
from collections.abc import Callable

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.decode_arm32 import LR, SP, Flow, Operation, decode_arm, decode_thumb
from memleak_android.unwind.code.stack_arm32 import State, after
from memleak_android.unwind.trace import Method

# The instruction set (A32 or T32) of code, which files without symbols do not record.
ReadCode = Callable[[int, int], bytes]
_WORDS_AROUND = 24  # to either side of the address
_A32_SHARE = 0.4  # of words that look like A32; misclassifies 3 % of glibc's A32 and 0.02 % of its T32 code
_WORDS_NEAR = 6
_NEAR_ALWAYS, _NEAR_SHARE = 0.15, 0.92  # misclassifies 0.11 % of glibc's T32 code
_A32_TOP = frozenset([*range(0xE0, 0xF0), *range(0xF2, 0xF6)])
# add ip, pc, …; add ip, ip, …; ldr pc, [ip, …]! or what is left of it
_PLT_ENTRY = re.compile(rb"(?:.[\xc0-\xcf][\x8c\x8f]\xe2){0,2}.[\xf0-\xff]\xbc\xe5", re.DOTALL)


def is_arm(read: ReadCode, vaddr: int) -> bool:
    """Whether the code is A32: most words have the condition `always` or are vector instructions (A5.1, A7.4),
    and their lower halfword does not begin a wide T32 instruction (A6.1)."""
    if vaddr & 2:
        return False
    start = vaddr & ~3
    if _PLT_ENTRY.match(read(start, 12)):
        return True  # among T32 entries (`bx pc; nop`)
    code = read(start - 4 * _WORDS_AROUND, 4 * _WORDS_AROUND) + read(start, 4 * _WORDS_AROUND)
    matches = sum(top in _A32_TOP and low < 0xE8 for top, low in zip(code[3::4], code[1::4], strict=False))
    return matches > _A32_SHARE * (len(code) // 4)


def may_be_arm(read: ReadCode, vaddr: int) -> bool:
    """Whether code looks like conditional A32 with a single condition besides `always` (glibc's memset)."""
    if vaddr & 2:
        return False
    size = 4 * _WORDS_NEAR
    around = read(vaddr - 2 * size, 2 * size) + read(vaddr, 2 * size)
    return any(_is_conditional(around[at : at + 2 * size]) for at in range(0, len(around) - size, size))


def _is_conditional(code: bytes) -> bool:
    conditions = Counter(top >> 4 for top in code[3::4])
    always = conditions.pop(14, 0)
    other = max(conditions.values(), default=0)
    words = len(code) // 4
    return always > _NEAR_ALWAYS * words and always + other > _NEAR_SHARE * words


_BYTES_BACK = 1 << 14
_CHUNK = 64  # bytes
_PROLOGUE_MAX = 32  # instructions
# push {…, lr} of 16 and 32 bits, str lr, [sp, #-4]!
_THUMB_PUSH = re.compile(rb".\xb5|\x2d\xe9.[\x40-\x5f]|\x4d\xf8\x04\xed", re.DOTALL)
_ARM_PUSH = re.compile(rb".[\x40-\x5f]\x2d\xe9|\x04\xe0\x2d\xe5", re.DOTALL)


def prologue_arm32(arch: Arch, read: ReadCode, vaddr: int) -> UnwindRow | None:
    """The rules at vaddr; None where no prologue is near."""
    decode, pattern, step = (
        (decode_arm, _ARM_PUSH, 4) if is_arm(read, vaddr) else (decode_thumb, _THUMB_PUSH, 2)
    )
    end = (vaddr + 3) & ~3
    while end > max(vaddr - _BYTES_BACK, _CHUNK):
        start = end - _CHUNK
        code = read(start, _CHUNK + 4)[: max(vaddr - start, 0)]  # a push may reach over the chunk's end
        if len(code) < min(_CHUNK, vaddr - start):
            break  # here the file's code begins
        for at in range(_CHUNK - step, -1, -step):
            if pattern.match(code, at):
                return _row(arch, _run(read, decode, start + at, vaddr))
        end = start
    return None


def _run(read: ReadCode, decode: Callable[[bytes, int], Operation], start: int, vaddr: int) -> State | None:
    """The state at vaddr, or behind the prologue. Its `base` is the stack pointer at the function's entry."""
    state: State | None = State(copies=())
    at = start
    for _ in range(_PROLOGUE_MAX):
        if state is None or at >= vaddr:
            break
        operation = decode(read(at, 4), at)
        if operation.flow is not Flow.NEXT or operation.covers:
            break
        state = after(state, operation)
        at += operation.size
    return state


def _row(arch: Arch, state: State | None) -> UnwindRow | None:
    if state is None or LR not in dict(state.stored):
        return None
    base, distance = SP, state.delta
    if state.is_sp_lost:
        pointers = [(register, offset) for register, (_, offset) in state.copies if register in (7, 11)]
        if not pointers:
            return None
        base, distance = pointers[-1]
    rules = sorted(RegisterRule(register, RuleKind.OFFSET, slot) for register, slot in state.stored)
    return UnwindRow(base, -distance, b"", tuple(rules), arch.return_register, False, Method.PROLOGUE)
