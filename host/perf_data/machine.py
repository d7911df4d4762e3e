"""perf's register numbers (arch/*/include/uapi/asm/perf_regs.h) as slots of our architectures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data.layout import Ints
from memleak_android.unwind.arch import Arch, arch_by_name

_X86 = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "ip", "flags", "cs", "ss", "ds", "es", "fs", "gs")
_X86_64 = (*_X86, *(f"r{n}" for n in range(8, 16)))
_ARM64 = (*(f"x{n}" for n in range(30)), "lr", "sp", "pc")
# For a 32-bit process the kernel uses the same numbers (arch/arm64/kernel/perf_regs.c).
_ARM32 = (*(f"r{n}" for n in range(16)),)
ABI_32, ABI_64 = 1, 2


@dataclass(frozen=True, slots=True)
class Machine:
    """By ABI, the architecture of a machine's processes and perf's names of its registers, in perf's order."""

    arches: dict[int, tuple[Arch, tuple[str, ...]]]

    def slots(self, abi: int, mask: int) -> Ints:
        """The slot of each register in a sample; -1 if our architecture lacks it. mask: the recorded registers."""
        arch, names = self.arches[abi]
        numbers = [n for n in range(64) if mask >> n & 1]
        return np.array([_slot(arch, names[n]) if n < len(names) else -1 for n in numbers], np.int64)


def _slot(arch: Arch, name: str) -> int:
    try:
        return arch.slot(name)
    except KeyError:
        return -1


def _named(name: str) -> Arch:
    arch = arch_by_name(name)
    assert arch is not None
    return arch


def machine_of(uname: str, registers: int) -> Machine:
    """The machine by `uname -m`; if that is "", by the mask of registers. Raises RecordingError."""
    intel = (_named("x86"), _X86)
    arm = (_named("arm32"), _ARM32)
    if uname in ("x86_64", "amd64") or (not uname and registers >> 16 and not registers >> 24):
        return Machine({ABI_32: intel, ABI_64: (_named("x86_64"), _X86_64)})
    if uname in ("aarch64", "arm64") or (not uname and registers >> 32):
        return Machine({ABI_32: arm, ABI_64: (_named("arm64"), _ARM64)})
    if uname.startswith("arm") or (not uname and registers == 0xFFFF):
        return Machine({ABI_32: arm})
    if uname in ("i386", "i486", "i586", "i686", "x86") or not uname:
        return Machine({ABI_32: intel})
    raise RecordingError(
        f"the recording is of an unsupported machine: {uname}", "x86_64, arm64, arm32 and i386 are supported"
    )
