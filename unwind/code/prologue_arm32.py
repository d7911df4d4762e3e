"""Rules for arm32 code without a reachable return, from the prologue before it.

Code that ends in longjmp, abort or a jump table of its own has no epilogue. The nearest push of the link register
before the pc is taken as the function's first; the code up to the next branch then gives the frame layout.
This is a guess, accepted by the unwinder only if the return address follows a call instruction.
"""

import re
from collections.abc import Callable

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.decode_arm32 import LR, SP, Flow, Operation, decode_arm, decode_thumb
from memleak_android.unwind.code.instruction_set_arm32 import ReadCode, is_arm
from memleak_android.unwind.code.stack_arm32 import State, after
from memleak_android.unwind.trace import Method

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
