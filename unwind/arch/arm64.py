"""arm64: AAPCS64 (registers, frame records), AADWARF64 §4.1 (DWARF numbers); struct user_pt_regs and struct rt_sigframe
of the kernel (arch/arm64/include/uapi/asm/ptrace.h, arch/arm64/kernel/signal.c)."""

from memleak_android.unwind.arch.base import Arch, CallForm, Register, SignalFrame

_FP, _LR, _SP, _PC = 29, 30, 31, 32

_REGISTERS = (
    *(Register(f"x{n}", n) for n in range(29)),
    Register("x29", 29, ("fp",)),
    Register("lr", 30, ("x30",)),
    Register("sp", 31, ("x31",)),
    Register("pc", 32),
    Register("pstate", None, ("pst", "cpsr")),
)

# mov x8, #139; svc #0: rt_sigreturn. sp points to siginfo (128 bytes), then ucontext; its mcontext is at 176 and
# begins with the fault address.
_FIRST_SAVED = 128 + 176 + 8
_RT_SIGRETURN = SignalFrame(
    code=bytes.fromhex("681180d2010000d4"),
    saved=tuple((slot, _FIRST_SAVED + 8 * slot) for slot in range(_PC + 1)),
)

# bl; blr; blraa, blrab, blraaz, blrabz (Armv8.3)
_CALL = (
    rb"(?:...[\x94-\x97]|[\x00\x20\x40\x60\x80\xa0\xc0\xe0][\x00-\x03]\x3f\xd6|.[\x08-\x0f]\x3f[\xd6\xd7])\Z"
)

ARCH = Arch(
    name="arm64",
    elf_machine=183,
    word_bytes=8,
    registers=_REGISTERS,
    pc=_PC,
    sp=_SP,
    fp=_FP,
    return_register=30,
    callee_saved=(_FP, _LR, *range(19, 29)),
    signal_frames=(_RT_SIGRETURN,),
    call_pattern=_CALL,
    link=_LR,
    address_bits=56,  # top byte ignore
    signature_mask=0x007F_FFFF_FFFF_FFFF,  # PAC; bit 55 says user or kernel
    call_forms=(CallForm(4),),
)
