/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of functions of --pairs (pair_entries.c), and what they and pairs.c tell each other. */
#pragma once

#include <stddef.h>

#include "preload/freestanding/registers.h"
#include "preload/segment/segment.h"

#define ML_PAIR_ENTRY_BYTES 16u
#define ML_PAIR_STACK_WORDS 16u /* of arguments that do not fit into registers: they are passed on */

#define ML_PAIR_GENERAL 18u
#define ML_PAIR_VECTORS 32u
#if defined(__x86_64__)
#define ML_PAIR_RESULT 6u
#else
#define ML_PAIR_RESULT 0u
#endif

/* On the stack of an entry, which goes by these offsets. */
struct ml_pair_frame {
	ml_u64 original;
	ml_u64 wants_return; /* else the function is jumped to, and returns to its caller */
	ml_u64 n_stack_words;
	ml_u64 reserved;
	/* All that a call may leave alone, or pass on: as the caller has left it, then as the function has. */
	ml_u64 general[ML_PAIR_GENERAL]; /* x86_64: rdi rsi rdx rcx r8 r9 rax r10 r11; arm64: x0 … x15, x18 */
	ml_u64 vectors[ML_PAIR_VECTORS][2];
	/* of pairs.c alone */
	const struct ml_pair *rule;
	ml_u32 function; /* enum ml_function */
	ml_u32 session;
	ml_u64 size;
	ml_u64 pointer; /* the argument that is the handle, or says where it is stored */
	ml_u64 old;     /* what was taken out of the table for the time of the call; 0 = nothing */
	struct ml_entry old_block;
	ml_u64 stack_pointer;
	ml_u64 turn; /* releases that came early, as the call was entered */
};

#define ML_PAIR_FRAME_BYTES 832
#define ML_PAIR_CALL_BYTES 32 /* where entries are told of the call, at the end of it */

_Static_assert(sizeof(struct ml_pair_frame) <= ML_PAIR_FRAME_BYTES - ML_PAIR_CALL_BYTES, "the entries make room for it");
_Static_assert(offsetof(struct ml_pair_frame, general) == 32 && offsetof(struct ml_pair_frame, vectors) == 176,
	       "the entries are assembly");

/* Entry i begins at i * ML_PAIR_ENTRY_BYTES of this. */
#if defined(__x86_64__) || defined(__aarch64__)
#define ML_HAS_PAIR_ENTRIES 1
#else
#define ML_HAS_PAIR_ENTRIES 0
#endif
extern const char ml_pair_entries[] __attribute__((visibility("hidden")));

/*
 * Where a patched function goes by way of a stub of its own (host/tracers/inline/islands.py), which tells of the call: on x86_64
 * 64 bytes below the stack pointer, on arm64 in x17.
 */
void memleak_pair_moved(void) __attribute__((visibility("default")));

/* Of patched functions, by rule's number, written by the agent before attaching: where they were moved to; who tells sizes, or 0. */
extern unsigned long memleak_pair_originals[ML_PAIRS] __attribute__((visibility("default")));
extern unsigned long memleak_pair_size_functions[ML_PAIRS] __attribute__((visibility("default")));

#define ML_PAIR_CALL_SHIFT 56 /* of the number in what tells of a call; below it the original, 0 = the entry's */

/* Before the function and after it. registers: the caller's. */
void ml_pair_enter(ml_u64 call, struct ml_pair_frame *frame, const struct ml_registers *registers);
void ml_pair_leave(struct ml_pair_frame *frame, const struct ml_registers *registers);
