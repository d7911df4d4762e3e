/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interrupted thread's registers: the kernel's struct pt_regs, part of its ABI for BPF (bpf_user_pt_regs_t), so
 * neither relocations nor kernel BTF are needed.
 */
#pragma once

#include "signature.h"
#include "wire.h"

#if defined(__TARGET_ARCH_x86)

/* arch/x86/include/asm/ptrace.h */
struct ml_regs {
	ml_u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

#define ML_N_REGISTERS 21
/* Callee-saved registers, sp and ip: what a caller still has after a call (psABI x86-64, 3.2.3). */
#define ML_REGISTERS_KNOWN ((1u << 0) | (1u << 1) | (1u << 2) | (1u << 3) | (1u << 4) | (1u << 5) | (1u << 16) | (1u << 19))

#define ML_ARG1(regs) ((regs)->di)
#define ML_ARG2(regs) ((regs)->si)
#define ML_ARG3(regs) ((regs)->dx)
#define ML_ARG4(regs) ((regs)->cx)
#define ML_ARG5(regs) ((regs)->r8)
#define ML_ARG6(regs) ((regs)->r9)
/* As a system call returns (psABI x86-64, A.2.1). */
#define ML_SYSCALL_ARG2(regs) ((regs)->si)
#define ML_SYSCALL_ARG3(regs) ((regs)->dx)
#define ML_SYSCALL_ARG4(regs) ((regs)->r10)
#define ML_SYSCALL_NUMBER(regs) ((regs)->orig_ax)
#define ML_NR_MMAP 9 /* arch/x86/entry/syscalls/syscall_64.tbl */
#define ML_NR_MUNMAP 11
#define ML_NR_BRK 12
#define ML_NR_MREMAP 25
#define ML_NR_SHMAT 30
#define ML_NR_SHMDT 67
#define ML_RETURN_VALUE(regs) ((regs)->ax)
#define ML_SP(regs) ((regs)->sp)
#define ML_IP(regs) ((regs)->ip)
#define ML_FP(regs) ((regs)->bp)
#define ML_COPY_LINK(to, from) ((void)(to))
/* `call` pushed the return address; `ret` popped it. */
#define ML_RETURN_POPS 8
/* The trampoline of a pending return probe replaces the return address at the entry's sp. */
#define ML_HIDDEN_AT(slot, cfa) (slot)
/* Addresses have neither tags nor signatures. */
#define ML_UNTAG(address) (address)
#define ML_SIGNATURE_MASK 0ull

/* At a function's entry. */
static __always_inline ml_u64 ml_return_address(struct ml_regs *regs)
{
	ml_u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (const void *)ML_SP(regs));
	return address;
}

/* Whether a call that was entered with this sp has not returned, as far as its stack tells. */
static __always_inline bool ml_is_in_slot(ml_u64 sp, ml_u64 return_address)
{
	ml_u64 there = 0;

	return !bpf_probe_read_user(&there, sizeof(there), (const void *)sp) && there == return_address;
}

static __always_inline ml_u64 ml_syscall_arg1(const struct ml_regs *regs, const void *kernel)
{
	(void)kernel;
	return regs->di;
}

/* Makes the registers at a `ret` those behind it. */
static __always_inline void ml_execute_return(struct ml_regs *regs, ml_u64 return_address)
{
	regs->ip = return_address;
	regs->sp += ML_RETURN_POPS;
}

#elif defined(__TARGET_ARCH_arm64)

/* struct user_pt_regs, arch/arm64/include/uapi/asm/ptrace.h */
struct ml_regs {
	ml_u64 x[31], sp, pc, pstate;
};

#define ML_N_REGISTERS 34
/* x19 … x29, sp and pc: what a caller still has after a call (AAPCS64 §6.1.1). */
#define ML_REGISTERS_KNOWN (0x7ffull << 19 | 1ull << 31 | 1ull << 32)

#define ML_ARG1(regs) ((regs)->x[0])
#define ML_ARG2(regs) ((regs)->x[1])
#define ML_ARG3(regs) ((regs)->x[2])
#define ML_ARG4(regs) ((regs)->x[3])
#define ML_ARG5(regs) ((regs)->x[4])
#define ML_ARG6(regs) ((regs)->x[5])
#define ML_SYSCALL_ARG2(regs) ((regs)->x[1])
#define ML_SYSCALL_ARG3(regs) ((regs)->x[2])
#define ML_SYSCALL_ARG4(regs) ((regs)->x[3])
#define ML_SYSCALL_NUMBER(regs) ((regs)->x[8])
#define ML_NR_MMAP 222 /* include/uapi/asm-generic/unistd.h */
#define ML_NR_MUNMAP 215
#define ML_NR_BRK 214
#define ML_NR_MREMAP 216
#define ML_NR_SHMAT 196
#define ML_NR_SHMDT 197
#define ML_RETURN_VALUE(regs) ((regs)->x[0])
#define ML_SP(regs) ((regs)->sp)
#define ML_IP(regs) ((regs)->pc)
#define ML_FP(regs) ((regs)->x[29])
/* By the link register the agent recognises a return probe's trampoline. */
#define ML_COPY_LINK(to, from) ((to)->x[30] = (from)->x[30])
/* `bl` and `ret` do not change sp. */
#define ML_RETURN_POPS 0
/*
 * A return probe puts its trampoline into the link register, which the function saves somewhere in its frame. Only the
 * frame's end, the entry's sp, is known.
 */
#define ML_HIDDEN_AT(slot, cfa) (cfa)
/* The top byte is not part of a data address (arm64 Documentation/tagged-pointers.rst). */
#define ML_UNTAG(address) ((address) & 0x00ffffffffffffffull)
#define ML_SIGNATURE_MASK (options.signature_mask)

/* At a function's entry: the link register, which the function may have signed before the probe. */
static __always_inline ml_u64 ml_return_address(struct ml_regs *regs)
{
	return ml_strip_signature(regs->x[30], ML_SIGNATURE_MASK);
}

/* The link register may have been saved anywhere. */
static __always_inline bool ml_is_in_slot(ml_u64 sp, ml_u64 return_address)
{
	(void)sp, (void)return_address;
	return true;
}

/* Makes the registers at a `ret` or `retaa` those behind it. */
static __always_inline void ml_execute_return(struct ml_regs *regs, ml_u64 return_address)
{
	regs->pc = return_address;
}

/* x0 has the result; the kernel keeps what it was behind the registers: orig_x0 of struct pt_regs, arch/arm64/include/asm/ptrace.h. */
static __always_inline ml_u64 ml_syscall_arg1(const struct ml_regs *regs, const void *kernel)
{
	ml_u64 first = 0;

	(void)regs;
	bpf_probe_read_kernel(&first, sizeof(first), kernel + sizeof(*regs));
	return first;
}

#else
#error "no register layout for this architecture"
#endif

#ifndef ML_OLD_KERNEL
/* The user's registers in a system call of this thread, and the call's first argument. bpf_task_pt_regs(): Linux 5.15, with BTF. */
static __always_inline bool ml_read_syscall(struct ml_regs *regs, ml_u64 *first)
{
	const void *kernel = (const void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	if (bpf_probe_read_kernel(regs, sizeof(*regs), kernel))
		return false;
	*first = ml_syscall_arg1(regs, kernel);
	return true;
}
#endif
