// SPDX-License-Identifier: Apache-2.0
/*
 * Entries of patched functions. They restore every register that the patched function may have left alone, because a
 * compiler that sees caller and callee relies on that (GCC's -fipa-ra). Excepted are flags, x16 and x17 on arm64, and
 * vectors beyond the architecture's baseline, which our code does not use.
 */
#include "preload/entries/function_table.h"
#include "preload/freestanding/registers.h"

#if defined(__x86_64__)

#define SAVED_BYTES "320" /* eight general registers, sixteen vectors */
#define SAVE(n) "movaps %xmm" #n ", 64+16*" #n "(%rsp)\n"
#define RESTORE(n) "movaps 64+16*" #n "(%rsp), %xmm" #n "\n"

/* memleak_inline_NAME(a, b, c) aligns the stack and calls HANDLER(a, b, c, registers). */
#define INLINE_ENTRY(name, handler)                                                                               \
	__asm__(".pushsection .text\n"                                                                            \
		".globl memleak_inline_" #name "\n"                                                               \
		".type memleak_inline_" #name ", %function\n"                                                     \
		".p2align 4\nmemleak_inline_" #name ":\n"                                                         \
		".cfi_startproc\n"                                                                                \
		"endbr64\n"                                                                                       \
		"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"                              \
		"mov %rsp, %rbx\n"                                                                                \
		".cfi_def_cfa %rbx, 56\n.cfi_offset %rbp, -16\n.cfi_offset %rbx, -24\n"                           \
		"sub $" SAVED_BYTES ", %rsp\nand $-16, %rsp\n"                                                    \
		"mov %rcx, (%rsp)\nmov %rdx, 8(%rsp)\nmov %rsi, 16(%rsp)\nmov %rdi, 24(%rsp)\n"                   \
		"mov %r8, 32(%rsp)\nmov %r9, 40(%rsp)\nmov %r10, 48(%rsp)\nmov %r11, 56(%rsp)\n" ML_VECTORS(SAVE)    \
		"mov %rbx, %rcx\n"                                                                                \
		"call " #handler "\n"                                                                             \
		"mov (%rsp), %rcx\nmov 8(%rsp), %rdx\nmov 16(%rsp), %rsi\nmov 24(%rsp), %rdi\n"                   \
		"mov 32(%rsp), %r8\nmov 40(%rsp), %r9\nmov 48(%rsp), %r10\nmov 56(%rsp), %r11\n" ML_VECTORS(RESTORE) \
		"mov %rbx, %rsp\n"                                                                                \
		".cfi_def_cfa %rsp, 56\n"                                                                         \
		"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"                                    \
		".cfi_def_cfa %rsp, 8\n.cfi_restore %rbp\n.cfi_restore %rbx\n"                                    \
		"ret\n"                                                                                           \
		".cfi_endproc\n"                                                                                  \
		".size memleak_inline_" #name ", .-memleak_inline_" #name "\n"                                    \
		".popsection\n")

#elif defined(__aarch64__)

#define SAVE(one, other) "stp q" #one ", q" #other ", [sp, #128+16*" #one "]\n"
#define RESTORE(one, other) "ldp q" #one ", q" #other ", [sp, #128+16*" #one "]\n"
#define GENERAL(move)                                                                                             \
	move " x1, x2, [sp]\n" move " x3, x4, [sp, #16]\n" move " x5, x6, [sp, #32]\n"                            \
	move " x7, x8, [sp, #48]\n" move " x9, x10, [sp, #64]\n" move " x11, x12, [sp, #80]\n"                    \
	move " x13, x14, [sp, #96]\n" move " x15, x18, [sp, #112]\n"

#define INLINE_ENTRY(name, handler)                                                                               \
	__asm__(".pushsection .text\n"                                                                            \
		".globl memleak_inline_" #name "\n"                                                               \
		".type memleak_inline_" #name ", %function\n"                                                     \
		".p2align 4\nmemleak_inline_" #name ":\n"                                                         \
		".cfi_startproc\n"                                                                                \
		"hint #34\n" /* bti c */                                                                          \
		"stp x29, x30, [sp, #-96]!\n"                                                                     \
		".cfi_def_cfa_offset 96\n.cfi_offset x29, -96\n.cfi_offset x30, -88\n"                            \
		"stp x19, x20, [sp, #16]\nstp x21, x22, [sp, #32]\nstp x23, x24, [sp, #48]\n"                     \
		"stp x25, x26, [sp, #64]\nstp x27, x28, [sp, #80]\n"                                              \
		"mov x29, sp\n"                                                                                   \
		".cfi_def_cfa x29, 96\n"                                                                          \
		"sub sp, sp, #640\n" GENERAL("stp") ML_VECTORS(SAVE)                                                   \
		"mov x3, x29\n"                                                                                   \
		"bl " #handler "\n" GENERAL("ldp") ML_VECTORS(RESTORE)                                                 \
		"add sp, sp, #640\n"                                                                              \
		"ldp x29, x30, [sp], #96\n"                                                                       \
		".cfi_def_cfa sp, 0\n.cfi_restore x29\n.cfi_restore x30\n"                                        \
		"ret\n"                                                                                           \
		".cfi_endproc\n"                                                                                  \
		".size memleak_inline_" #name ", .-memleak_inline_" #name "\n"                                    \
		".popsection\n")

#else
#define INLINE_ENTRY(name, handler) extern int ml_no_inline_hooks /* the host makes no patch plans for 32 bits */
#endif

#define BY_HANDLER(name, result, parameters) INLINE_ENTRY(name, ml_handle_##name);
ML_ACQUIRING_FUNCTIONS(BY_HANDLER)

/* These need no registers. Within an original their caller is our own code, so the call counts as internal. */
#define BY_ITSELF(name, result, parameters) INLINE_ENTRY(name, name);
ML_RELEASING_FUNCTIONS(BY_ITSELF)
