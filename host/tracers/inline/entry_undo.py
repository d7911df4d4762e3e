"""First instructions of a function that a hook can undo, so that its jump comes behind them.

Another tracer's uprobe at a function's entry runs a copy of the first instruction from the file, continues behind it, and
restores its first byte at removal (kernel/events/uprobes.c, install_breakpoint(), set_orig_insn()). On a jump of several
bytes it would continue in the middle of the jump. Instructions that stay in place are safe under such a uprobe.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from memleak_android.host.tracers.inline.relocation import signed
from memleak_android.unwind.code.disassembly import Flow, Instruction

# Only these: executed twice from equal registers and memory they have the same effect.
_X86_64_REPEATABLE = frozenset(("test", "cmp", "mov", "movabs", "movzx", "movsx", "movsxd", "lea"))
_X86_64_FREE = frozenset(("rax", "r10", "r11"))  # psABI x86-64 §3.2.3: neither arguments nor callee-saved
_ARM64_REPEATABLE = frozenset(
    ("tst", "cmp", "cmn", "mov", "movz", "movn", "adr", "adrp", "add", "sub",
     "ldr", "ldrb", "ldrh", "ldrsw", "ldrsb", "ldrsh", "ldur")
)  # fmt: skip
_ARM64_FREE = frozenset(f"x{n}" for n in range(8, 16))  # AAPCS64 §6.1.1

_PUSHES = frozenset(range(0x50, 0x58))  # of a register; r8 to r15 with REX.B
_REX_B = b"\x41"
_PUSHED_BYTES = 8
_WRITES_BACK = re.compile(r"\]!|\],")


def undone_at_entry(
    instructions: Sequence[Instruction], undo: Callable[[Instruction], bytes | None]
) -> Iterator[bytes]:
    """Yields the undo code of the first instructions, as long as all of them can be undone and executed again."""
    read: set[str] = set()
    for instruction in instructions:
        undone = undo(instruction)
        if undone is None or (not undone and instruction.writes & read):
            return
        read |= instruction.reads
        yield undone


def undo_x86_64(instruction: Instruction) -> bytes | None:
    """Code that restores the registers from before `one`; None if that is not known to be possible."""
    opcode = instruction.code.removeprefix(_REX_B)
    if len(opcode) == 1 and opcode[0] in _PUSHES:
        return _lea_rsp(_PUSHED_BYTES)
    if instruction.code[:3] in (bytes.fromhex("4883ec"), bytes.fromhex("4881ec")):  # sub $…, %rsp
        return _lea_rsp(int.from_bytes(instruction.code[3:], "little", signed=True))
    return b"" if _is_repeatable(instruction, _X86_64_REPEATABLE, _X86_64_FREE) else None


def undo_arm64(instruction: Instruction) -> bytes | None:
    """The same as undo_x86_64()."""
    word = int.from_bytes(instruction.code, "little")
    found = _SIGNATURES.get(word, 0) or _undone_push(word) or _undone_frame(word)
    if found:
        return found.to_bytes(4, "little")
    is_repeatable = _is_repeatable(instruction, _ARM64_REPEATABLE, _ARM64_FREE) and not _WRITES_BACK.search(
        instruction.operands
    )
    return b"" if is_repeatable else None


def _is_repeatable(instruction: Instruction, known: frozenset[str], free: frozenset[str]) -> bool:
    """Tests whether it writes only registers that are free at an entry, from others."""
    if instruction.mnemonic not in known or instruction.flow is not Flow.NEXT or instruction.writes_memory:
        return False
    return instruction.writes <= free and not instruction.writes & instruction.reads


def _lea_rsp(displacement: int) -> bytes:
    """lea displacement(%rsp), %rsp: keeps the flags."""
    return bytes.fromhex("488da424") + displacement.to_bytes(4, "little", signed=True)


# ---- A64, by encodings of the Arm ARM, C4.1 --------------------------------------------------------------------------

_SP = 31
_ADD_SP = 0x910003FF  # add sp, sp, #0
_STP_PRE_INDEX = {0xA9800000: 8, 0x6D800000: 8, 0xAD800000: 16}  # of x, d and q registers: bytes of one
_STR_PRE_INDEX = (0xF8000C00, 0xFC000C00, 0x3C800C00)  # x, d, q
_SIGNATURES = {0xD503233F: 0xD50323BF, 0xD503237F: 0xD50323FF}  # paciasp → autiasp, pacibsp → autibsp


def _undone_push(word: int) -> int:
    """Undoes stp …, …, [sp, #-n]! and str …, [sp, #-n]!; 0 for others."""
    if word >> 5 & 31 != _SP:
        return 0
    n_bytes = 0
    if scale := _STP_PRE_INDEX.get(word & 0xFFC00000, 0):
        n_bytes = -signed(word >> 15, 7) * scale
    elif word & 0xFFE00C00 in _STR_PRE_INDEX:
        n_bytes = -signed(word >> 12, 9)
    return _ADD_SP | n_bytes << 10 if n_bytes > 0 else 0


def _undone_frame(word: int) -> int:
    """Undoes sub sp, sp, #n; n has 12 bits that may be shifted by 12."""
    return _ADD_SP | word & 0x007FFC00 if word & 0xFF8003FF == 0xD10003FF else 0
