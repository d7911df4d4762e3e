"""The architectures: one data file each. Looked up by ELF machine number or by name."""

from memleak_android.unwind.arch import arm32, arm64, i386, x86_64
from memleak_android.unwind.arch.base import Arch, Register

ARCHES: tuple[Arch, ...] = (x86_64.ARCH, arm64.ARCH, arm32.ARCH, i386.ARCH)

__all__ = ["ARCHES", "Arch", "Register", "arch_by_elf_machine", "arch_by_name"]


def arch_by_elf_machine(machine: int) -> Arch | None:
    """machine: e_machine of an ELF header."""
    return next((arch for arch in ARCHES if arch.elf_machine == machine), None)


def arch_by_name(name: str) -> Arch | None:
    """name: x86_64, arm64, arm32 or x86."""
    return next((arch for arch in ARCHES if arch.name == name), None)
