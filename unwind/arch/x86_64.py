"""x86_64: System V psABI 1.0 §3.2 (registers), figure 3.36 (DWARF numbers); struct pt_regs and
struct sigcontext of the kernel (arch/x86/include/asm/ptrace.h, uapi/asm/sigcontext.h)."""

from memleak_android.unwind.arch.base import Arch, Register, SignalFrame

_REGISTERS = (
    Register("r15", 15),
    Register("r14", 14),
    Register("r13", 13),
    Register("r12", 12),
    Register("rbp", 6, ("bp",)),
    Register("rbx", 3, ("bx",)),
    Register("r11", 11),
    Register("r10", 10),
    Register("r9", 9),
    Register("r8", 8),
    Register("rax", 0, ("ax",)),
    Register("rcx", 2, ("cx",)),
    Register("rdx", 1, ("dx",)),
    Register("rsi", 4, ("si",)),
    Register("rdi", 5, ("di",)),
    Register("orig_rax", None, ("orig_ax",)),
    Register("rip", 16, ("ip",)),
    Register("cs", None),
    Register("eflags", None, ("flags",)),
    Register("rsp", 7, ("sp",)),
    Register("ss", None),
)

# rt_sigreturn: sp points to struct ucontext; its sigcontext begins at 40.
_SAVED = (
    (9, 40), (8, 48), (7, 56), (6, 64), (3, 72), (2, 80), (1, 88), (0, 96),  # r8 … r15
    (14, 104), (13, 112), (4, 120), (5, 128),  # rdi rsi rbp rbx
    (12, 136), (10, 144), (11, 152), (19, 160), (16, 168),  # rdx rax rcx rsp rip
)  # fmt: skip
_RT_SIGRETURN = tuple(
    SignalFrame(code=bytes.fromhex(code), saved=_SAVED)
    for code in (
        "48c7c00f0000000f05",  # mov $0xf,%rax; syscall: libc's
        "b80f0000000f05",  # mov $0xf,%eax; syscall
        "6a0f580f05",  # push $0xf; pop %rax; syscall
    )
)

# call rel32; call r/m64 (ff /2): register, [reg], [reg+disp8], [reg+disp32], [rip+disp32], each also with a SIB byte
CALL = (
    rb"(?:\xe8.{4}|\xff(?:[\xd0-\xd7\x10-\x13\x16\x17]|\x14.|[\x50-\x53\x55-\x57].|\x54..|\x15.{4}"
    rb"|[\x90-\x93\x95-\x97].{4}|\x94.{5}|\x14[\x05\x0d\x15\x1d\x2d\x35\x3d\x25].{4}))\Z"
)

ARCH = Arch(
    name="x86_64",
    elf_machine=62,
    word_bytes=8,
    registers=_REGISTERS,
    pc=16,
    sp=19,
    fp=4,
    return_register=16,
    callee_saved=(4, 5, 3, 2, 1, 0),  # rbp rbx r12 r13 r14 r15
    signal_frames=_RT_SIGRETURN,
    call_pattern=CALL,
)
