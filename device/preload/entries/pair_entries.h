/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of functions of --pairs (pair_entries.c) and their interface to pairs.c. */
#pragma once

#include "preload/freestanding/registers.h"
#include "preload/segment/segment.h"

#define ML_PAIR_ENTRY_BYTES 16u
#define ML_PAIR_STACK_WORDS 16u /* arguments beyond the registers, which are copied */

#define ML_PAIR_GENERAL 18u
#define ML_PAIR_VECTORS 32u
#if defined(__x86_64__)
#define ML_PAIR_RESULT 6u
#else
#define ML_PAIR_RESULT 0u
#endif

/* On the stack of an entry, whose assembly uses these offsets. */
struct ml_pair_frame {
	ml_u64 original;
	ml_u64 wants_return; /* 0: the function is jumped to and returns to its caller */
	ml_u64 n_stack_words;
	ml_u64 reserved;
	/* Registers that a call may preserve or pass on: first as the caller left them, then as the function did. */
	ml_u64 general[ML_PAIR_GENERAL]; /* x86_64: rdi rsi rdx rcx r8 r9 rax r10 r11; arm64: x0 … x15, x18 */
	ml_u64 vectors[ML_PAIR_VECTORS][2];
	/* used by pairs.c alone */
	const struct ml_pair *rule;
	ml_u32 function; /* enum ml_function */
	ml_u32 session;
	ml_u64 size;
	ml_u64 pointer; /* the argument that is the handle, or the address where it is stored */
	ml_u64 old;     /* the handle claimed for the duration of the call; 0 = none */
	struct ml_entry old_block;
	ml_u64 stack_pointer;
	ml_u64 turn; /* number of early releases at the call's entry */
};

#define ML_PAIR_FRAME_BYTES 832
#define ML_PAIR_CALL_BYTES 32 /* at its end, where entries get the word that identifies the call */

_Static_assert(sizeof(struct ml_pair_frame) <= ML_PAIR_FRAME_BYTES - ML_PAIR_CALL_BYTES, "the entries make room for it");
_Static_assert(offsetof(struct ml_pair_frame, general) == 32 && offsetof(struct ml_pair_frame, vectors) == 176,
	       "the entries are assembly");

/* Entry i begins at i * ML_PAIR_ENTRY_BYTES. */
#if defined(__x86_64__) || defined(__aarch64__)
#define ML_HAS_PAIR_ENTRIES 1
#else
#define ML_HAS_PAIR_ENTRIES 0
#endif
extern const char ml_pair_entries[] __attribute__((visibility("hidden")));

/*
 * The target of a patched function's stub (host/tracers/inline/landings.py). The stub leaves a word that identifies the
 * call: on x86_64 64 bytes below the stack pointer, on arm64 in x17.
 */
void memleak_pair_moved(void) __attribute__((visibility("default")));

/*
 * For patched functions, by rule number, written by the agent before attaching: the address they were moved to, and the
 * function that returns a handle's size, or 0.
 */
extern unsigned long memleak_pair_originals[ML_PAIRS] __attribute__((visibility("default")));
extern unsigned long memleak_pair_size_functions[ML_PAIRS] __attribute__((visibility("default")));

#define ML_PAIR_CALL_SHIFT 56 /* position of the rule number in that word; the bits below are the original, 0 = the entry's */

/* Before and after the function. registers: the caller's. */
void ml_pair_enter(ml_u64 call, struct ml_pair_frame *frame, const struct ml_registers *registers);
void ml_pair_leave(struct ml_pair_frame *frame, const struct ml_registers *registers);
