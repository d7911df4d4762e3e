// SPDX-License-Identifier: Apache-2.0
/*
 * Entries of functions of --pairs, for slots and for patched code. Arguments and results are unknown here, and so are
 * the registers on which a caller that saw the code relies (GCC's -fipa-ra). So every register that a call may change
 * is restored before the function is called and after it, and words of the caller's stack are copied. Functions whose
 * return does not matter are jumped to. Excepted are flags, x16 and x17 on arm64, and vectors beyond the baseline.
 */
#include "preload/entries/pair_entries.h"

_Static_assert(ML_PAIRS == 12 * 16, "an entry each");

unsigned long memleak_pair_originals[ML_PAIRS], memleak_pair_size_functions[ML_PAIRS];

#define FRAME_(bytes) #bytes
#define FRAME__(bytes) FRAME_(bytes)
#define FRAME FRAME__(ML_PAIR_FRAME_BYTES)

#if defined(__x86_64__)

#define SAVE(n) "movaps %xmm" #n ", 176+16*" #n "(%rsp)\n"
#define RESTORE(n) "movaps 176+16*" #n "(%r12), %xmm" #n "\n"
#define SAVE_ALL                                                                           \
	"mov %rdi, 32(%rsp)\nmov %rsi, 40(%rsp)\nmov %rdx, 48(%rsp)\nmov %rcx, 56(%rsp)\n" \
	"mov %r8, 64(%rsp)\nmov %r9, 72(%rsp)\nmov %rax, 80(%rsp)\nmov %r10, 88(%rsp)\nmov %r11, 96(%rsp)\n" ML_VECTORS(SAVE)
#define RESTORE_ALL                                                                        \
	ML_VECTORS(RESTORE)                                                                \
	"mov 32(%r12), %rdi\nmov 40(%r12), %rsi\nmov 48(%r12), %rdx\nmov 56(%r12), %rcx\n" \
	"mov 64(%r12), %r8\nmov 72(%r12), %r9\nmov 80(%r12), %rax\nmov 88(%r12), %r10\nmov 96(%r12), %r11\n"
#define LEAVE ML_LEAVE

/*
 * The 128 bytes below the stack pointer are the function's own; signal handlers skip them (System V ABI, "The Stack
 * Frame").
 */
__asm__(".pushsection .text\n"
	".globl ml_pair_entries\n.hidden ml_pair_entries\n.type ml_pair_entries, %function\n"
	".p2align 4\nml_pair_entries:\n"
	".irp high,0,1,2,3,4,5,6,7,8,9,10,11\n"
	".irp low,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
	".p2align 4\nendbr64\nmov $16*\\high+\\low, %r11d\njmp ml_pair_entry\n"
	".endr\n.endr\n"
	".size ml_pair_entries, .-ml_pair_entries\n"
	".type ml_pair_entry, %function\n"
	".p2align 4\nml_pair_entry:\n"
	".cfi_startproc\n"
	"shl $56, %r11\n"
	"mov %r11, -64(%rsp)\n"
	".globl memleak_pair_moved\n.type memleak_pair_moved, %function\n"
	"memleak_pair_moved:\n"
	"endbr64\n" ML_PUSH "mov %rsp, %rbx\n"
	".cfi_def_cfa %rbx, 56\n.cfi_offset %rbp, -16\n.cfi_offset %rbx, -24\n.cfi_offset %r12, -32\n"
	"sub $" FRAME ", %rsp\nand $-16, %rsp\n" SAVE_ALL "mov %rsp, %r12\n"
	"mov -16(%rbx), %rdi\nmov %rsp, %rsi\nmov %rbx, %rdx\n"
	"call ml_pair_enter\n"
	"cmpq $0, 8(%r12)\n"
	"je 1f\n"
	"mov 16(%r12), %rcx\n"
	"lea (,%rcx,8), %rax\nsub %rax, %rsp\n"
	"lea 56(%rbx), %rsi\nmov %rsp, %rdi\nrep movsq\n" RESTORE_ALL "call *(%r12)\n"
	"mov %r12, %rsp\n" SAVE_ALL "mov %rsp, %rdi\nmov %rbx, %rsi\n"
	"call ml_pair_leave\n" RESTORE_ALL ".cfi_remember_state\n" LEAVE "ret\n"
	".cfi_restore_state\n"
	"1:\n"
	"mov (%r12), %rax\nmov %rax, -16(%rbx)\n" RESTORE_ALL LEAVE "jmp *-64(%rsp)\n"
	".cfi_endproc\n"
	".size memleak_pair_moved, .-memleak_pair_moved\n"
	".size ml_pair_entry, .-ml_pair_entry\n"
	".popsection\n");

#elif defined(__aarch64__)

#define SAVE(one, other) "stp q" #one ", q" #other ", [sp, #176+16*" #one "]\n"
#define RESTORE(one, other) "ldp q" #one ", q" #other ", [x19, #176+16*" #one "]\n"
#define GENERAL(move, base)                                                                                              \
	move "p x0, x1, [" base ", #32]\n" move "p x2, x3, [" base ", #48]\n" move "p x4, x5, [" base ", #64]\n" move    \
	     "p x6, x7, [" base ", #80]\n" move "p x8, x9, [" base ", #96]\n" move "p x10, x11, [" base ", #112]\n" move \
	     "p x12, x13, [" base ", #128]\n" move "p x14, x15, [" base ", #144]\n" move "r x18, [" base ", #160]\n"
#define SAVE_ALL GENERAL("st", "sp") ML_VECTORS(SAVE)
#define RESTORE_ALL ML_VECTORS(RESTORE) GENERAL("ld", "x19")
#define LEAVE                                \
	"mov sp, x29\n.cfi_def_cfa sp, 96\n" \
	"ldr x19, [sp, #16]\n"               \
	"ldp x29, x30, [sp], #96\n"          \
	".cfi_def_cfa sp, 0\n.cfi_restore x19\n.cfi_restore x29\n.cfi_restore x30\n"

__asm__(".pushsection .text\n"
	".globl ml_pair_entries\n.hidden ml_pair_entries\n.type ml_pair_entries, %function\n"
	".p2align 4\nml_pair_entries:\n"
	".irp high,0,1,2,3,4,5,6,7,8,9,10,11\n"
	".irp low,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
	".p2align 4\nhint #34\nmov w17, #16*\\high+\\low\nb ml_pair_entry\n" /* bti c */
	".endr\n.endr\n"
	".size ml_pair_entries, .-ml_pair_entries\n"
	".type ml_pair_entry, %function\n"
	".p2align 4\nml_pair_entry:\n"
	".cfi_startproc\n"
	"lsl x17, x17, #56\n"
	".globl memleak_pair_moved\n.type memleak_pair_moved, %function\n"
	"memleak_pair_moved:\n"
	"hint #34\n" ML_PUSH ".cfi_offset x19, -80\n.cfi_def_cfa x29, 96\n"
	"sub sp, sp, #" FRAME "\n" SAVE_ALL "mov x19, sp\n"
	"mov x0, x17\nmov x1, sp\nmov x2, x29\n"
	"bl ml_pair_enter\n"
	"ldp x9, x10, [x19, #8]\n"
	"cbz x9, 3f\n"
	"sub sp, sp, x10, lsl #3\n"
	"add x11, x29, #96\nmov x12, sp\n"
	"1:\ncbz x10, 2f\n"
	"ldp x13, x14, [x11], #16\nstp x13, x14, [x12], #16\nsub x10, x10, #2\nb 1b\n"
	"2:\n" RESTORE_ALL "ldr x16, [x19]\nblr x16\n"
	"mov sp, x19\n" SAVE_ALL "mov x0, sp\nmov x1, x29\n"
	"bl ml_pair_leave\n" RESTORE_ALL ".cfi_remember_state\n" LEAVE "ret\n"
	".cfi_restore_state\n"
	"3:\n" RESTORE_ALL "ldr x16, [x19]\n" LEAVE "br x16\n"
	".cfi_endproc\n"
	".size memleak_pair_moved, .-memleak_pair_moved\n"
	".size ml_pair_entry, .-ml_pair_entry\n"
	".popsection\n");

#else
const char ml_pair_entries[1]; /* no function is bound to any */

void memleak_pair_moved(void) /* the host makes no patch plans for 32 bits */
{
}
#endif
