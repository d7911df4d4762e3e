"""Kinds of code and of files that real devices have and the captured cases do not, each built by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from memleak_android.unwind import Method, TraceEnd
from memleak_android.unwind.arch.arm64 import ARCH as ARM64
from memleak_android.unwind.arch.x86_64 import ARCH as X86_64
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.code.epilogue import Dead, walk_to_return
from memleak_android.unwind.snapshot.folder import Snapshot
from tests.support.builders.cfi_assembler import op
from tests.support.builders.tiny_elf import CODE_VADDR, FUNCTION_BYTES, tiny_elf

LR, FP = 30, 29
LDP_X29_X30 = 0xA9407BFD  # ldp x29, x30, [sp]
LDP_X19_X20 = 0xA94153F3  # ldp x19, x20, [sp, #16]
ADD_SP_X12 = 0x8B2C63FF  # add sp, sp, x12
RET = 0xD65F03C0


def walked(*words: int) -> UnwindRow | Dead:
    """Kinds read off arm64 code at vaddr 0x1000."""
    code = struct.pack(f"<{len(words)}I", *words)
    return walk_to_return(ARM64, lambda vaddr, size: code[vaddr - 0x1000 :][:size], 0x1000, frozenset())


@pytest.mark.parametrize(
    ("constant", "size"),
    [
        ((0xD2846A0C,), 0x2350),  # mov x12, #0x2350
        ((0xD28B000C, 0xF2A0002C), 0x15800),  # mov x12, #0x5800; movk x12, #1, lsl #16
    ],
)
def test_an_arm64_frame_that_is_too_large_for_an_immediate(constant: tuple[int, ...], size: int) -> None:
    """How GCC ends functions with more than 4 KiB of locals."""
    row = walked(*constant, LDP_X29_X30, LDP_X19_X20, ADD_SP_X12, RET)
    assert isinstance(row, UnwindRow) and row.cfa_offset == size
    assert RegisterRule(LR, RuleKind.OFFSET, 8 - size) in row.rules


@pytest.mark.parametrize(
    "between",
    [
        0xAA0103EC,  # mov x12, x1
        0xF94003EC,  # ldr x12, [sp]
        0xA94033F3,  # ldp x19, x12, [sp]
        0x94000000,  # bl: a call may change it
    ],
)
def test_a_constant_that_was_overwritten_is_not_believed(between: int) -> None:
    assert isinstance(walked(0xD2846A0C, between, LDP_X29_X30, ADD_SP_X12, RET), Dead)


BASE, STACK = 0x700000000000, 0x7FFF00001000


def snapshot(folder: Path, elf: bytes, pc: int, words: dict[int, int]) -> Snapshot:
    """x86_64: an ELF at BASE, the pc in it, words of the stack by their distance from the stack pointer."""
    stack = bytearray(max(words) + 8)
    for at, word in words.items():
        struct.pack_into("<Q", stack, at, word)
    (folder / "lib.so").write_bytes(elf)
    (folder / "maps.txt").write_text(f"{BASE:x}-{BASE + 0x9000:x} r-xp 0 00:00 0 /lib.so\n")
    (folder / "regs.txt").write_text(f"rip: {pc:x}\nrsp: {STACK:x}\n")
    (folder / "stack.data").write_bytes(struct.pack("<Q", STACK) + stack)
    return Snapshot(folder)


def test_a_handler_without_rules_returns_to_a_trampoline_that_no_call_stands_before(tmp_path: Path) -> None:
    handler, trampoline, interrupted = (BASE + CODE_VADDR + i * FUNCTION_BYTES for i in range(3))
    elf = bytearray(tiny_elf([None, None, [op(0x07, 16)]], code=b"\x90" * 7 + b"\xc3"))  # nop …; ret
    at = CODE_VADDR + FUNCTION_BYTES
    elf[at : at + 9] = bytes.fromhex("48c7c00f0000000f05")  # mov $15, %rax; syscall
    (frame,) = X86_64.signal_frames
    saved = {8 + offset: 0x5000 + slot for slot, offset in frame.saved}
    saved[8 + dict(frame.saved)[X86_64.pc]] = interrupted + 0x10
    found = snapshot(tmp_path, bytes(elf), handler + 2, {0: trampoline, **saved})
    frames, end = found.unwind()
    assert [(f.lookup, f.method) for f in frames] == [
        (handler + 2, Method.REGISTERS),
        (trampoline, Method.PROLOGUE),
        (interrupted + 0x10, Method.SIGNAL),
    ]
    assert frames[2].sp == 0x5000 + X86_64.sp and end is TraceEnd.ROOT


@pytest.mark.parametrize(("rules", "method"), [([], Method.SIGNAL), ([op(0x0E, 24)], Method.EH_FRAME)])
def test_a_trampolines_code_is_believed_over_rules_that_know_of_no_frame(
    tmp_path: Path, rules: list[bytes], method: Method
) -> None:
    """Rules of an entry are what an assembler gives an undescribed trampoline; others were written on purpose."""
    elf = bytearray(tiny_elf([rules, [], [op(0x07, 16)]]))
    elf[CODE_VADDR + 8 : CODE_VADDR + 17] = bytes.fromhex("48c7c00f0000000f05")  # mov $15, %rax; syscall
    (frame,) = X86_64.signal_frames
    back = BASE + CODE_VADDR + 2 * FUNCTION_BYTES + 8
    words = {dict(frame.saved)[X86_64.pc]: back, dict(frame.saved)[X86_64.sp]: STACK + 24, 16: back, 0: 0}
    frames, _ = snapshot(tmp_path, bytes(elf), BASE + CODE_VADDR + 8, words).unwind()
    assert [f.method for f in frames] == [Method.REGISTERS, method]


def test_code_without_rules_returns_nowhere_else_but_behind_a_call(tmp_path: Path) -> None:
    elf = tiny_elf([None, None, [op(0x07, 16)]], code=b"\x90" * 7 + b"\xc3")
    pc = BASE + CODE_VADDR + 2
    frames, end = snapshot(tmp_path, elf, pc, {0: pc + FUNCTION_BYTES}).unwind()
    assert [f.lookup for f in frames] == [pc] and end is TraceEnd.NO_UNWIND_ROW
