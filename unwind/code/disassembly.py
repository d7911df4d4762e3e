"""Machine code bytes → instructions, with what each one reads, writes and where it may go.

The only importer of capstone. Nothing here decides anything: host/tracers/probes/placement.py, patch plans and
call-site checks ask. Registers are named by their widest form (`rdi`, also for `edi` and `dil`; `x0`, also for `w0`),
so that a write to a part counts as a write to the whole.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import capstone
from capstone import x86_const


class Flow(Enum):
    """Control flow after an instruction."""

    NEXT = "next"
    CONDITIONAL = "conditional"  # jcc, loop, jrcxz; b.cond, cbz, tbz: to the target or to the next one
    JUMP = "jump"
    CALL = "call"
    RETURN = "return"
    SYSTEM = "system"  # syscall, int n: the kernel may do anything
    STOP = "stop"  # hlt, ud2: never goes on


@dataclass(frozen=True, slots=True)
class MemoryOperand:
    """`base + index*scale + displacement`; base and index "" when there is none."""

    base: str
    index: str
    displacement: int
    is_written: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One decoded instruction at `address` (of whatever space the caller decodes in).

    target: of a direct branch, None for an indirect one and for all others.
    reads, writes: registers in their widest form, implicit ones (rsp of push) included, flags and rip not.
    memory: explicit memory operands; the stack access of push, pop, call and ret is not among them.
    """

    address: int
    code: bytes
    mnemonic: str
    operands: str
    flow: Flow
    target: int | None
    reads: frozenset[str]
    writes: frozenset[str]
    memory: tuple[MemoryOperand, ...]

    @property
    def size(self) -> int:
        return len(self.code)

    @property
    def end(self) -> int:
        return self.address + len(self.code)

    @property
    def is_branch(self) -> bool:
        return self.flow in (Flow.CONDITIONAL, Flow.JUMP, Flow.CALL)

    @property
    def is_indirect(self) -> bool:
        return self.is_branch and self.target is None

    @property
    def writes_memory(self) -> bool:
        """Apart from what push and call put on the stack."""
        return any(operand.is_written for operand in self.memory)

    def __str__(self) -> str:
        return f"{self.mnemonic} {self.operands}".rstrip()


def decode_x86_64(code: bytes, address: int = 0) -> Iterator[Instruction]:
    """Linear decode from the first byte on; ends early, without an error, at the first undecodable byte."""
    return map(_instruction, _engine(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm(code, address))


def decode_arm64(code: bytes, address: int = 0) -> Iterator[Instruction]:
    """Like decode_x86_64, for A64 code: 4 bytes each; a partial word at the end is not decoded."""
    return map(
        _arm64_instruction, _engine(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM).disasm(code, address)
    )


@cache
def _engine(arch: int, mode: int) -> Any:
    engine = capstone.Cs(arch, mode)
    engine.detail = True
    return engine


def _made(
    raw: Any,
    flow: Flow,
    goes_to: Any,
    reads: frozenset[str],
    writes: frozenset[str],
    memory: tuple[MemoryOperand, ...],
) -> Instruction:
    """goes_to: the operand that is the target of a direct branch."""
    target = None
    if flow in (Flow.CONDITIONAL, Flow.JUMP, Flow.CALL) and goes_to and goes_to.type == capstone.CS_OP_IMM:
        target = int(goes_to.imm) & (2**64 - 1)
    code = bytes(raw.bytes)
    return Instruction(raw.address, code, raw.mnemonic, raw.op_str, flow, target, reads, writes, memory)


# Capstone does not mark the memory operand of every instruction as written (atomics least of all), so the
# rule is turned round: a first operand in memory counts as written unless the instruction is one of these.
_ONLY_READS_FIRST_OPERAND = re.compile(
    r"(cmp|test|bt|nop|prefetch\w*|jmp|call|push|mul|imul|div|idiv|ucomis[sd]|comis[sd]|fld\w*)$"
)
_WRITES_ANY_MEMORY_OPERAND = re.compile(r"(lock |xacquire |xrelease )|(xchg|xadd|cmpxchg\w*)$")

_FLOW_BY_ID = {
    x86_const.X86_INS_CALL: Flow.CALL,
    x86_const.X86_INS_LCALL: Flow.CALL,
    x86_const.X86_INS_JMP: Flow.JUMP,
    x86_const.X86_INS_LJMP: Flow.JUMP,
    x86_const.X86_INS_RET: Flow.RETURN,
    x86_const.X86_INS_RETF: Flow.RETURN,
    x86_const.X86_INS_SYSCALL: Flow.SYSTEM,
    x86_const.X86_INS_SYSENTER: Flow.SYSTEM,
    x86_const.X86_INS_INT: Flow.SYSTEM,
    x86_const.X86_INS_INT1: Flow.SYSTEM,
    x86_const.X86_INS_INT3: Flow.SYSTEM,
    x86_const.X86_INS_HLT: Flow.STOP,
    x86_const.X86_INS_UD2: Flow.STOP,
}


def _instruction(raw: Any) -> Instruction:
    flow, goes_to = _flow(raw), next(iter(raw.operands), None)
    reads, writes = (_names(raw, registers) for registers in raw.regs_access())
    return _made(raw, flow, goes_to, reads, writes, tuple(_memory_operands(raw)))


def _flow(raw: Any) -> Flow:
    known = _FLOW_BY_ID.get(raw.id)
    if known is not None:
        return known
    # loop and jrcxz are in the second group only
    if x86_const.X86_GRP_JUMP in raw.groups or x86_const.X86_GRP_BRANCH_RELATIVE in raw.groups:
        return Flow.CONDITIONAL
    if x86_const.X86_GRP_IRET in raw.groups:
        return Flow.RETURN
    return Flow.NEXT


def _memory_operands(raw: Any) -> Iterator[MemoryOperand]:
    if raw.id == x86_const.X86_INS_LEA:
        return
    writes_any = _WRITES_ANY_MEMORY_OPERAND.match(raw.mnemonic) is not None
    reads_first = _ONLY_READS_FIRST_OPERAND.match(raw.mnemonic) is not None
    for i, operand in enumerate(raw.operands):
        if operand.type != capstone.CS_OP_MEM:
            continue
        marked = bool(operand.access & capstone.CS_AC_WRITE) and not reads_first
        yield MemoryOperand(
            base=_name(raw, operand.mem.base),
            index=_name(raw, operand.mem.index),
            displacement=operand.mem.disp,
            is_written=marked or writes_any or (i == 0 and not reads_first),
        )


def _names(raw: Any, registers: Any) -> frozenset[str]:
    names = (_name(raw, register) for register in registers)
    return frozenset(name for name in names if name not in ("", "rflags", "rip"))


def _name(raw: Any, register: int) -> str:
    return _widest(raw.reg_name(register)) if register else ""


_LEGACY = re.compile(r"[er]?([abcd])(x|l|h)$")
_POINTER = re.compile(r"[er]?(sp|bp|si|di|ip)l?$")
_NUMBERED = re.compile(r"(r\d+)[dwb]$")


@cache
def _widest(name: str) -> str:
    if match := _LEGACY.match(name):
        return f"r{match[1]}x"
    if match := _POINTER.match(name):
        return f"r{match[1]}"
    if match := _NUMBERED.match(name):
        return match[1]
    return "rflags" if name == "eflags" else name


# ---- A64 --------------------------------------------------------------------------------------------

_ARM64_FLOW = (
    (re.compile(r"b$"), Flow.JUMP),
    (re.compile(r"(br|bra[ab]z?)$"), Flow.JUMP),
    (re.compile(r"(bc?\.\w+|cbn?z|tbn?z)$"), Flow.CONDITIONAL),
    (re.compile(r"(bl|blr|blra[ab]z?)$"), Flow.CALL),
    (re.compile(r"(ret|reta[ab]|eret\w*)$"), Flow.RETURN),
    (re.compile(r"(brk|hlt|udf)$"), Flow.STOP),
    (re.compile(r"(svc|hvc|smc|dc|ic|at|tlbi|sysl?|msr|dcps\d)$"), Flow.SYSTEM),
)
# All but loads and prefetches may write memory. Atomics begin like loads (Arm ARM C4.1.94).
_ARM64_ONLY_READS = re.compile(r"(ld(?!(add|clr|eor|set|smax|smin|umax|umin)(a?l?)[bh]?$)|prfu?m)")
_ARM64_SIGNS = re.compile(r"(pac|aut|xpac)")  # x30 if no register is named
_ARM64_COMPARES = re.compile(r"(cmp|cmn|tst)$")  # names of subs, adds and ands without a result
_ARM64_RENAMED = {"fp": "x29", "lr": "x30", "wsp": "sp"}
_ARM64_IGNORED = frozenset(("nzcv", "xzr", "wzr"))


def _arm64_instruction(raw: Any) -> Instruction:
    flow = next((flow for name, flow in _ARM64_FLOW if name.match(raw.mnemonic)), Flow.NEXT)
    memory = tuple(_arm64_memory_operands(raw))
    reads, writes = (_arm64_names(raw, registers) for registers in raw.regs_access())
    if _ARM64_SIGNS.match(raw.mnemonic):
        writes |= {"x30"}
    named = _arm64_names(raw, (o.reg for o in raw.operands if o.type == capstone.CS_OP_REG))
    if _ARM64_COMPARES.match(raw.mnemonic):  # its first operand is marked as written, and not as read
        reads, writes = reads | named, frozenset()
    if any(operand.is_written for operand in memory):  # neither results nor operands of atomics are marked
        writes |= named - reads
        reads |= named
    if any(operand.is_written for operand in memory) and raw.writeback:
        writes |= {operand.base for operand in memory}
    # the last operand is where a direct branch goes: tbz has a bit number before it
    return _made(raw, flow, raw.operands[-1] if raw.operands else None, reads, writes, memory)


def _arm64_memory_operands(raw: Any) -> Iterator[MemoryOperand]:
    for operand in raw.operands:
        if operand.type == capstone.CS_OP_MEM:
            yield MemoryOperand(
                base=_arm64_name(raw, operand.mem.base),
                index=_arm64_name(raw, operand.mem.index),
                displacement=operand.mem.disp,
                is_written=_ARM64_ONLY_READS.match(raw.mnemonic) is None,
            )


def _arm64_names(raw: Any, registers: Any) -> frozenset[str]:
    return frozenset(_arm64_name(raw, register) for register in registers) - _ARM64_IGNORED - {""}


def _arm64_name(raw: Any, register: int) -> str:
    name = str(raw.reg_name(register)) if register else ""
    if match := re.fullmatch(r"w(\d+)", name):
        return f"x{match[1]}"
    return _ARM64_RENAMED.get(name, name)
