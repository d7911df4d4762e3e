"""The two emulated CPUs: which registers the emulator numbers how, and how they are set up for user code.

Facts: Arm ARM (DDI 0487) for SCTLR_EL1, TCR_EL1 and the keys; arch/arm64/kernel/signal.c, arch/arm/kernel/signal.c of
Linux for what a handler starts with.
"""

import struct
from dataclasses import dataclass
from typing import Any

import pytest

unicorn = pytest.importorskip("unicorn", reason="the emulator unicorn is not installed (pip install unicorn)")
from unicorn import arm64_const as a64
from unicorn import arm_const as a32

_THUMB = 1 << 5
_SIGINFO = 4  # SA_SIGINFO


@dataclass(frozen=True, slots=True)
class Cpu:
    """registers: the emulator's numbers in the order of Arch.registers. arguments: of a system call."""

    name: str
    word_bytes: int
    registers: tuple[int, ...]
    pc: int
    sp: int
    lr: int
    call_number: int
    arguments: tuple[int, ...]
    thread_pointer: int


ARM64 = Cpu(
    name="arm64",
    word_bytes=8,
    registers=(*(getattr(a64, f"UC_ARM64_REG_X{n}") for n in range(31)), a64.UC_ARM64_REG_SP, a64.UC_ARM64_REG_PC,
        a64.UC_ARM64_REG_NZCV),
    pc=a64.UC_ARM64_REG_PC,
    sp=a64.UC_ARM64_REG_SP,
    lr=a64.UC_ARM64_REG_X30,
    call_number=a64.UC_ARM64_REG_X8,
    arguments=tuple(getattr(a64, f"UC_ARM64_REG_X{n}") for n in range(6)),
    thread_pointer=a64.UC_ARM64_REG_TPIDR_EL0,
)  # fmt: skip

ARM32 = Cpu(
    name="arm32",
    word_bytes=4,
    registers=(*(getattr(a32, f"UC_ARM_REG_R{n}") for n in range(13)), a32.UC_ARM_REG_SP, a32.UC_ARM_REG_LR,
        a32.UC_ARM_REG_PC, a32.UC_ARM_REG_CPSR, a32.UC_ARM_REG_R0),
    pc=a32.UC_ARM_REG_PC,
    sp=a32.UC_ARM_REG_SP,
    lr=a32.UC_ARM_REG_LR,
    call_number=a32.UC_ARM_REG_R7,
    arguments=tuple(getattr(a32, f"UC_ARM_REG_R{n}") for n in range(6)),
    thread_pointer=a32.UC_ARM_REG_C13_C0_3,
)  # fmt: skip

CPUS = {"arm64": ARM64, "arm32": ARM32}


def new_engine(cpu: Cpu) -> Any:
    """An emulator ready for user code: vector registers on, pointer authentication on, 39 bits of address."""
    if cpu is ARM64:
        engine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        engine.ctl_set_cpu_model(a64.UC_CPU_ARM64_MAX)
        _set_up_arm64(engine)
    else:
        engine = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_ARM)
        engine.ctl_set_cpu_model(a32.UC_CPU_ARM_MAX)
        # CPACR: coprocessors 10, 11
        engine.reg_write(a32.UC_ARM_REG_CP_REG, (15, 0, 0, 1, 0, 0, 2, 0xF << 20))
        engine.reg_write(a32.UC_ARM_REG_FPEXC, 1 << 30)
    return engine


def _set_up_arm64(engine: Any) -> None:
    """The code runs at EL3, where no higher level has to permit pointer authentication."""

    def write(op1: int, crn: int, crm: int, op2: int, value: int) -> None:
        engine.reg_write(a64.UC_ARM64_REG_CP_REG, (crn, crm, 3, op1, op2, value))

    engine.reg_write(a64.UC_ARM64_REG_PSTATE, 0x3CD)  # EL3h, interrupts masked
    keys = 0x9E3779B97F4A7C15
    for op2 in range(4):  # APIAKey, APIBKey
        write(0, 2, 1, op2, keys * (op2 + 1) & (1 << 64) - 1)
    write(6, 2, 0, 2, 25 | 1 << 20)  # TCR_EL3: T0SZ, TBI
    write(6, 1, 0, 0, 1 << 31 | 1 << 30)  # SCTLR_EL3: EnIA, EnIB
    write(0, 1, 0, 2, 3 << 20)  # CPACR_EL1: FPEN


def is_thumb(cpu: Cpu, engine: Any) -> bool:
    return cpu is ARM32 and bool(engine.reg_read(a32.UC_ARM_REG_CPSR) & _THUMB)


def signal_frame(
    cpu: Cpu, values: list[int], sp: int, signal: int, flags: int
) -> tuple[int, bytes, dict[int, int]]:
    """(address, contents, registers of the handler but pc and lr) of a signal frame below sp.

    values: of the interrupted registers, in the order of cpu.registers.
    """
    r = cpu.arguments
    if cpu is ARM64:
        body = bytes(128 + 176 + 8) + struct.pack("<34Q", *values[:34]) + bytes(4096 + 8)
        body = body.ljust(-(-len(body) // 16) * 16, b"\0")
        at = (sp - 16 - len(body)) & ~15
        record = struct.pack("<QQ", values[29], values[30])
        handler = {r[0]: signal, r[1]: at, r[2]: at + 128, cpu.registers[29]: at + len(body), cpu.sp: at}
        return at, body + record, handler
    context = bytes(12) + struct.pack("<17I", *values[:17]) + bytes(4 + 8 + 512)
    body = (bytes(128 + 20) if flags & _SIGINFO else struct.pack("<I16x", 0x5AC3C35A)) + context
    at = (sp - len(body)) & ~7
    return at, body, {r[0]: signal, r[1]: at, r[2]: at + 128, cpu.sp: at}
