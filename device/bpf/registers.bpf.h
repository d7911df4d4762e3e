/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a uprobe program sees of the interrupted thread: the kernel's struct pt_regs, part of its ABI for
 * BPF (bpf_user_pt_regs_t), so that no relocation and no kernel BTF is needed.
 */
#ifndef MEMLEAK_REGISTERS_BPF_H
#define MEMLEAK_REGISTERS_BPF_H

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
#define ML_RETURN_VALUE(regs) ((regs)->ax)
#define ML_SP(regs) ((regs)->sp)
#define ML_IP(regs) ((regs)->ip)
#define ML_FP(regs) ((regs)->bp)
/* `call` pushed the return address; `ret` popped it. */
#define ML_RETURN_POPS 8
#define ML_RETURN_ADDRESS_ON_STACK 1
/* Addresses carry no tags. */
#define ML_UNTAG(address) (address)

#else
#error "no register layout for this architecture"
#endif

#endif
