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

/* Aligns the stack and calls HANDLER(a, b, c, registers). */
#define INLINE_ENTRY(name, handler)                                                                                            \
	ML_FUNCTION(name, ML_PUSH                                                                                              \
		    "mov %rsp, %rbx\n"                                                                                         \
		    ".cfi_def_cfa %rbx, 56\n.cfi_offset %rbp, -16\n.cfi_offset %rbx, -24\n"                                    \
		    "sub $" SAVED_BYTES ", %rsp\nand $-16, %rsp\n"                                                             \
		    "mov %rcx, (%rsp)\nmov %rdx, 8(%rsp)\nmov %rsi, 16(%rsp)\nmov %rdi, 24(%rsp)\n"                            \
		    "mov %r8, 32(%rsp)\nmov %r9, 40(%rsp)\nmov %r10, 48(%rsp)\nmov %r11, 56(%rsp)\n" ML_VECTORS(               \
			    SAVE) "mov %rbx, %rcx\n"                                                                           \
				  "call " #handler "\n"                                                                        \
				  "mov (%rsp), %rcx\nmov 8(%rsp), %rdx\nmov 16(%rsp), %rsi\nmov 24(%rsp), %rdi\n"              \
				  "mov 32(%rsp), %r8\nmov 40(%rsp), %r9\nmov 48(%rsp), %r10\nmov 56(%rsp), %r11\n" ML_VECTORS( \
					  RESTORE) ML_LEAVE ".cfi_restore %rbp\n.cfi_restore %rbx\nret\n")

#elif defined(__aarch64__)

#define SAVE(one, other) "stp q" #one ", q" #other ", [sp, #128+16*" #one "]\n"
#define RESTORE(one, other) "ldp q" #one ", q" #other ", [sp, #128+16*" #one "]\n"
#define GENERAL(move)                                                                                                   \
	move " x1, x2, [sp]\n" move " x3, x4, [sp, #16]\n" move " x5, x6, [sp, #32]\n" move " x7, x8, [sp, #48]\n" move \
	     " x9, x10, [sp, #64]\n" move " x11, x12, [sp, #80]\n" move " x13, x14, [sp, #96]\n" move                   \
	     " x15, x18, [sp, #112]\n"

#define INLINE_ENTRY(name, handler)                                                                         \
	ML_FUNCTION(name, ML_PUSH ".cfi_def_cfa x29, 96\nsub sp, sp, #640\n" GENERAL("stp")                 \
				  ML_VECTORS(SAVE) "mov x3, x29\nbl " #handler "\n" GENERAL("ldp")          \
					  ML_VECTORS(RESTORE) "add sp, sp, #640\nldp x29, x30, [sp], #96\n" \
							      ".cfi_def_cfa sp, 0\n.cfi_restore x29\n.cfi_restore x30\nret\n")

#else
#define INLINE_ENTRY(name, handler) extern int ml_no_inline_hooks /* the host makes no patch plans for 32 bits */
#endif

#define BY_HANDLER(name, result, parameters) INLINE_ENTRY(memleak_inline_##name, ml_handle_##name);
ML_ACQUIRING_FUNCTIONS(BY_HANDLER)

/* These need no registers. Within an original their caller is our own code, so the call counts as internal. */
#define BY_ITSELF(name, result, parameters) INLINE_ENTRY(memleak_inline_##name, name);
ML_RELEASING_FUNCTIONS(BY_ITSELF)
