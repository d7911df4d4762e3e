"""i386, for captured stacks: System V psABI for i386 table 2.14 (DWARF numbers); struct pt_regs and struct sigcontext_32
of the kernel (arch/x86/include/asm/ptrace.h, uapi/asm/sigcontext.h)."""

from memleak_android.unwind.arch.base import Arch, Register, SignalFrame
from memleak_android.unwind.arch.x86_64 import CALL

_REGISTERS = (
    Register("ebx", 3, ("bx",)),
    Register("ecx", 1, ("cx",)),
    Register("edx", 2, ("dx",)),
    Register("esi", 6, ("si",)),
    Register("edi", 7, ("di",)),
    Register("ebp", 5, ("bp",)),
    Register("eax", 0, ("ax",)),
    Register("ds"),
    Register("es"),
    Register("fs"),
    Register("gs"),
    Register("orig_eax", None, ("orig_ax",)),
    Register("eip", 8, ("ip",)),
    Register("cs"),
    Register("eflags", None, ("flags",)),
    Register("esp", 4, ("sp",)),
    Register("ss"),
)

_SAVED = ((4, 16), (3, 20), (5, 24), (15, 28), (0, 32), (2, 36), (1, 40), (6, 44), (12, 56))
_SIGRETURN = (
    SignalFrame(  # pop %eax; mov $119,%eax; int $0x80. sp points to the signal's number, then sigcontext
        bytes.fromhex("58b877000000cd80"), _SAVED, bytes.fromhex("7404")
    )
)
_RT_SIGRETURN = SignalFrame(  # mov $173,%eax; int $0x80. The third word is a pointer to ucontext
    bytes.fromhex("b8ad000000cd80"), _SAVED, bytes.fromhex("7408 06 2314")
)

ARCH = Arch(
    name="x86",
    elf_machine=3,
    word_bytes=4,
    registers=_REGISTERS,
    pc=12,
    sp=15,
    fp=5,
    return_register=8,
    callee_saved=(5, 0, 3, 4),  # ebp ebx esi edi
    signal_frames=(_SIGRETURN, _RT_SIGRETURN),
    call_pattern=CALL,  # call r/m32, with the same bytes
    address_bits=32,
    u64_alignment=4,
)
