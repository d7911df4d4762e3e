"""arm32: AAPCS32 (registers), AADWARF32 §4.1 (DWARF numbers); struct pt_regs and the signal frames of the kernel
(arch/arm/include/uapi/asm/ptrace.h, arch/arm/kernel/signal.c and sigreturn_codes.S)."""

from memleak_android.unwind.arch.base import Arch, CallForm, Register, SignalFrame

_FP, _SP, _LR, _PC = 11, 13, 14, 15

_REGISTERS = (
    *(Register(f"r{n}", n) for n in range(11)),
    Register("r11", 11, ("fp",)),
    Register("ip", 12, ("r12",)),
    Register("sp", 13, ("r13",)),
    Register("lr", 14, ("r14",)),
    Register("pc", 15, ("r15",)),
    Register("cpsr", None),
    Register("orig_r0", None),
)

_SAVED = tuple((slot, 4 * slot) for slot in range(16))
_FIRST_SAVED = 12  # of sigcontext: trap number, error code, old mask come first
_UCONTEXT = 20  # before its sigcontext

# sp points to a sigcontext (kernels before 2.6.18) or to a ucontext, whose flags are then this mark.
_OLD_BASE = bytes.fromhex("7d00 06 0c5ac3c35a 29 0814 1e 7d00 22 080c 22")
# sp points to siginfo (128 bytes), then ucontext; before them old kernels put two pointers, to sp + 8 the first.
_RT_BASE = bytes.fromhex("7d00 06 7d08 29 0808 1e 7d00 22 0aa000 22")
assert _FIRST_SAVED == 0x0C and _UCONTEXT == 0x14 and 128 + _UCONTEXT + _FIRST_SAVED == 0xA0

_SIGRETURN, _RT_SIGRETURN = 119, 173  # system call numbers


def _trampolines(number: int, base: bytes) -> tuple[SignalFrame, ...]:
    n = f"{number:02x}"
    codes = (
        f"{n}70a0e3 000000ef",  # mov r7, #n; svc #0
        f"{n}70a0e3 {n}0090ef",  # mov r7, #n; svc #(0x900000 + n): understood by both ABIs
        f"{n}0090ef",  # svc #(0x900000 + n)
        f"{n}27 00df",  # movs r7, #n; svc #0 (Thumb)
        f"4ff0{n}07 00df",  # mov.w r7, #n; svc #0 (Thumb-2, glibc's sa_restorer_v2 as armhf builds it)
    )
    return tuple(SignalFrame(bytes.fromhex(code), _SAVED, base) for code in codes)


_THUMB_BL = rb".[\xf0-\xf7].[\xc0-\xff]\Z"  # bl, blx to a label: two halfwords
_THUMB_WIDE = rb".[\xf0-\xff].[\xc0-\xff]\Z"  # one of two halfwords that may be a call
_ARM_CALL = (
    rb"(?:...[\x0b\x1b\x2b\x3b\x4b\x5b\x6b\x7b\x8b\x9b\xab\xbb\xcb\xdb\xeb\xfa\xfb]|[\x30-\x3f]\xff\x2f.)\Z"
)
_THUMB_BLX = rb"[\x80\x88\x90\x98\xa0\xa8\xb0\xb8\xc0\xc8\xd0\xd8\xe0\xe8\xf0\xf8]\x47\Z"  # blx to a register
_MOV_LR_PC = rb"\xe0\xa0\xe1.{4}\Z"  # mov lr, pc; then any jump

ARCH = Arch(
    name="arm32",
    elf_machine=40,
    word_bytes=4,
    registers=_REGISTERS,
    pc=_PC,
    sp=_SP,
    fp=_FP,
    return_register=14,
    callee_saved=(_FP, _LR, 4, 5, 6, 7, 8, 9, 10),
    signal_frames=_trampolines(_SIGRETURN, _OLD_BASE) + _trampolines(_RT_SIGRETURN, _RT_BASE),
    call_pattern=b"(?:" + b"|".join((_THUMB_BL, _ARM_CALL, _THUMB_BLX, _MOV_LR_PC)) + b")",
    link=_LR,
    instruction_mask=0xFFFF_FFFE,
    address_bits=32,
    has_epilogue_rules=False,  # LLVM writes none (ARMFrameLowering::emitEpilogue)
    has_frame_records=False,  # r11 in ARM code, r7 in Thumb code
    chain_slots=(_FP, 7),
    call_forms=(
        CallForm(4, 1, _THUMB_WIDE),
        CallForm(2, 1),
        CallForm(4, 0, rb".{4}\Z"),
        CallForm(2, 0),  # of unknown code: the shortest
    ),
)
