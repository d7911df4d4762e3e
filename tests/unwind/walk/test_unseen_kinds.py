"""Kinds of files that real devices have and the captured cases do not, each built by hand."""

from pathlib import Path

import pytest

from memleak_android.unwind import Method, TraceEnd
from memleak_android.unwind.arch.x86_64 import ARCH
from tests.support.builders.cfi_assembler import op
from tests.support.builders.small_library import BASE, CODE_VADDR, FUNCTION, STACK, X86_64, filled, unwind

(FRAME,) = ARCH.signal_frames
SLOTS = dict(FRAME.saved)
TRAMPOLINE = bytes.fromhex("48c7c00f0000000f05")  # mov $15, %rax; syscall


def stack(words: dict[int, int]) -> list[int]:
    """words: by their distance from the stack pointer."""
    return [words.get(at, 0) for at in range(0, max(words) + 8, 8)]


def test_a_handler_without_rules_returns_to_a_trampoline_that_no_call_stands_before(tmp_path: Path) -> None:
    handler, trampoline, interrupted = (BASE + CODE_VADDR + i * FUNCTION for i in range(3))
    elf = bytearray(filled([None, None, [op(0x07, 16)]], code=b"\x90" * 7 + b"\xc3"))  # nop …; ret
    at = CODE_VADDR + FUNCTION
    elf[at : at + 9] = TRAMPOLINE
    words = stack({0: trampoline, **{8 + offset: 0x5000 + slot for slot, offset in FRAME.saved}})
    words[1 + SLOTS[ARCH.pc] // 8] = interrupted + 0x10
    frames, end = unwind(tmp_path, X86_64, bytes(elf), {"rip": handler + 2}, words)
    assert [(f.lookup, f.method) for f in frames] == [
        (handler + 2, Method.REGISTERS),
        (trampoline, Method.PROLOGUE),
        (interrupted + 0x10, Method.SIGNAL),
    ]
    assert frames[2].sp == 0x5000 + ARCH.sp and end is TraceEnd.ROOT


@pytest.mark.parametrize(("rules", "method"), [([], Method.SIGNAL), ([op(0x0E, 24)], Method.EH_FRAME)])
def test_a_trampolines_code_is_believed_over_rules_that_know_of_no_frame(
    tmp_path: Path, rules: list[bytes], method: Method
) -> None:
    """Rules of an entry are what an assembler gives an undescribed trampoline; others were written on purpose."""
    elf = bytearray(filled([rules, [], [op(0x07, 16)]]))
    elf[CODE_VADDR + 8 : CODE_VADDR + 17] = TRAMPOLINE
    back = BASE + CODE_VADDR + 2 * FUNCTION + 8
    words = stack({SLOTS[ARCH.pc]: back, SLOTS[ARCH.sp]: STACK + 24, 16: back})
    frames, _ = unwind(tmp_path, X86_64, bytes(elf), {"rip": BASE + CODE_VADDR + 8}, words)
    assert [f.method for f in frames] == [Method.REGISTERS, method]


def test_code_without_rules_returns_nowhere_else_but_behind_a_call(tmp_path: Path) -> None:
    elf = filled([None, None, [op(0x07, 16)]], code=b"\x90" * 7 + b"\xc3")
    pc = BASE + CODE_VADDR + 2
    frames, end = unwind(tmp_path, X86_64, elf, {"rip": pc}, [pc + FUNCTION])
    assert [f.lookup for f in frames] == [pc] and end is TraceEnd.NO_UNWIND_ROW
