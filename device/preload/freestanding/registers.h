/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's registers, saved by the entry of each interposed function before compiled code can change them, and
 * their order in the kernel's struct pt_regs (wire.h). This header and syscalls.h hold everything in the shim that
 * depends on the architecture.
 */
#pragma once

#include "wire.h"

#if defined(__x86_64__)

struct ml_registers { /* as ML_ENTRY pushes them */
	ml_u64 r15, r14, r13, r12, rbx, rbp, return_address;
};

#define ML_N_REGISTERS 21 /* r15 r14 r13 r12 rbp rbx r11 … orig_rax rip cs eflags rsp ss */
#define ML_REGISTERS_KNOWN (0x3full | 1ull << 16 | 1ull << 19)
#define ML_FRAME_POINTER(registers) ((registers)->rbp)
#define ML_CHAIN_POINTER(registers) ((registers)->rbp)
#define ML_UNTAG(address) ((ml_u64)(address))

static inline void ml_registers_store(const struct ml_registers *from, ml_u64 stack_pointer, ml_u64 *to)
{
	for (int i = 0; i < ML_N_REGISTERS; i++)
		to[i] = 0;
	to[0] = from->r15;
	to[1] = from->r14;
	to[2] = from->r13;
	to[3] = from->r12;
	to[4] = from->rbp;
	to[5] = from->rbx;
	to[16] = from->return_address;
	to[19] = stack_pointer;
}

/* All vector registers of the baseline. */
#define ML_VECTORS(move)                                                                                                    \
	move(0) move(1) move(2) move(3) move(4) move(5) move(6) move(7) move(8) move(9) move(10) move(11) move(12) move(13) \
		move(14) move(15)

#define ML_BEGIN ".p2align 4\n", ".cfi_startproc\nendbr64\n"
#define ML_END ".cfi_endproc\n"
#define ML_PUSH "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
#define ML_LEAVE /* once rbx has the stack pointer of ML_PUSH */ \
	"mov %rbx, %rsp\n.cfi_def_cfa %rsp, 56\n"                \
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n.cfi_def_cfa %rsp, 8\n"

/* pass: passes the saved registers in 8 bytes of stack. */
#define ML_ENTRY_(name, handler, pass)                                                            \
	ML_FUNCTION(name, ML_PUSH ".cfi_adjust_cfa_offset 48\n" pass ".cfi_adjust_cfa_offset 8\n" \
				  "call " #handler "\nadd $56, %rsp\n.cfi_adjust_cfa_offset -56\nret\n")

/* NAME(a, b, c) calls HANDLER(a, b, c, registers). */
#define ML_ENTRY(name, handler) ML_ENTRY_(name, handler, "mov %rsp, %rcx\nsub $8, %rsp\n")

/* NAME(a … f) calls HANDLER(a … f, registers), the seventh argument on the stack. */
#define ML_ENTRY6(name, handler) ML_ENTRY_(name, handler, "mov %rsp, %rax\npush %rax\n")

#elif defined(__aarch64__)

struct ml_registers {
	ml_u64 x29, return_address, x19, x20, x21, x22, x23, x24, x25, x26, x27, x28;
};

#define ML_N_REGISTERS 34 /* x0 … x30 sp pc pstate */
#define ML_REGISTERS_KNOWN (0xfffull << 19 | 1ull << 31 | 1ull << 32)
#define ML_FRAME_POINTER(registers) ((registers)->x29)
#define ML_CHAIN_POINTER(registers) ((registers)->x29)
/* Bionic and MTE tag the top byte. libc gets the tagged pointer, the table the plain one. */
#define ML_UNTAG(address) ((ml_u64)(address) & ~(0xffull << 56))

static inline void ml_registers_store(const struct ml_registers *from, ml_u64 stack_pointer, ml_u64 *to)
{
	for (int i = 0; i < ML_N_REGISTERS; i++)
		to[i] = 0;
	for (int i = 0; i < 10; i++)
		to[19 + i] = (&from->x19)[i];
	to[29] = from->x29;
	to[30] = from->return_address;
	to[31] = stack_pointer;
	to[32] = from->return_address;
}

/* All vector registers, in pairs. */
#define ML_VECTORS(move)                                                                                           \
	move(0, 1) move(2, 3) move(4, 5) move(6, 7) move(8, 9) move(10, 11) move(12, 13) move(14, 15) move(16, 17) \
		move(18, 19) move(20, 21) move(22, 23) move(24, 25) move(26, 27) move(28, 29) move(30, 31)

#define ML_BEGIN ".p2align 4\n", ".cfi_startproc\nhint #34\n" /* bti c */
#define ML_END ".cfi_endproc\n"
#define ML_PUSH                                                                       \
	"stp x29, x30, [sp, #-96]!\n"                                                 \
	".cfi_def_cfa_offset 96\n.cfi_offset x29, -96\n.cfi_offset x30, -88\n"        \
	"stp x19, x20, [sp, #16]\nstp x21, x22, [sp, #32]\nstp x23, x24, [sp, #48]\n" \
	"stp x25, x26, [sp, #64]\nstp x27, x28, [sp, #80]\nmov x29, sp\n"

#define ML_ENTRY_(name, handler, pass) ML_FUNCTION(name, ML_PUSH pass "bl " #handler "\nldp x29, x30, [sp], #96\nret\n")

#define ML_ENTRY(name, handler) ML_ENTRY_(name, handler, "mov x3, sp\n")
#define ML_ENTRY6(name, handler) ML_ENTRY_(name, handler, "mov x6, sp\n")

#elif defined(__arm__)

struct ml_registers {
	unsigned int r4, r5, r6, r7, r8, r9, r10, r11, return_address;
};

#define ML_N_REGISTERS 18 /* r0 … r15 cpsr orig_r0 */
#define ML_REGISTERS_KNOWN (0xff0ull | 7ull << 13)
#define ML_FRAME_POINTER(registers) ((registers)->r11)
#define ML_CHAIN_POINTER(registers) ((registers)->return_address & 1 ? (registers)->r7 : (registers)->r11) /* frame_chain.h */
#define ML_UNTAG(address) ((ml_u64)(unsigned long)(address))

static inline void ml_registers_store(const struct ml_registers *from, ml_u64 stack_pointer, ml_u64 *to)
{
	for (int i = 0; i < ML_N_REGISTERS; i++)
		to[i] = 0;
	for (int i = 0; i < 8; i++)
		to[4 + i] = (&from->r4)[i];
	to[13] = stack_pointer;
	to[14] = from->return_address;
	to[15] = from->return_address;
}

#define ML_BEGIN ".p2align 2\n.arm\n", ".fnstart\n"
#define ML_END ".fnend\n"
#define ML_ENTRY(name, handler)                                                                              \
	ML_FUNCTION(name, "push {r4-r11, lr}\n.save {r4-r11, lr}\n.pad #4\nsub sp, sp, #4\nadd r3, sp, #4\n" \
			  "bl " #handler "\nadd sp, sp, #4\npop {r4-r11, pc}\n")

#endif

/* A function in assembly. */
#define ML_FUNCTION(name, body) ML_FUNCTION_(name, body, ML_BEGIN)
#define ML_FUNCTION_(name, body, begin) ML_FUNCTION__(name, body, begin)
#define ML_FUNCTION__(name, body, align, begin)                                                                          \
	__asm__(".pushsection .text\n.globl " #name "\n.type " #name ", %function\n" align #name ":\n" begin body ML_END \
		".size " #name ", .-" #name "\n.popsection\n")

/* The stack pointer after the call has returned. */
static inline ml_u64 ml_registers_stack_pointer(const struct ml_registers *registers)
{
	return (ml_u64)(unsigned long)registers + sizeof(*registers);
}
