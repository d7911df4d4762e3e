/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * How to step from a return address to the caller's, for stack keys on the target: what the DWARF CFI of the calling
 * function says at that place, where it says it in the usual shape. For the BPF programs the agent learns the rules from
 * the evidence that it gets (agent/frames.c) and writes them into a table; the shim reads them out of its own process
 * the first time it meets a return address (preload/frame_resolve.c).
 * A place without a rule costs precision of the key (it then reads more of the stack than frames), never a wrong one.
 */
#ifndef MEMLEAK_FRAME_RULE_H
#define MEMLEAK_FRAME_RULE_H

#include "wire.h"

enum ml_frame_kind {
	ML_FRAME_NONE = 1,     /* looked for, and there is no rule of these shapes */
	ML_FRAME_END = 2,      /* the outermost frame: its return address is undefined */
	ML_FRAME_SP = 3,       /* CFA = sp + cfa_offset */
	ML_FRAME_FP = 4,       /* CFA = frame pointer + cfa_offset */
	ML_FRAME_FP_DEREF = 5, /* CFA = *(frame pointer + cfa_offset): functions that align their stack */
};

/*
 * sp and fp: as they are when the callee has returned. The caller's sp is the CFA (psABI x86-64 §3.2.2, AAPCS64 §6.4).
 * Two words, each read at once. A rule may give way to another: who has read the second word looks whether the first
 * is still the same.
 */
struct ml_frame_rule {
	ml_u64 hash;    /* ml_frame_hash(); 0 = empty. Written last. */
	ml_s32 cfa;      /* offset in bytes * ML_FRAME_KINDS + enum ml_frame_kind */
	ml_u16 fp_words; /* the caller's frame pointer is at CFA - 8 * fp_words; 0 = it was not touched; ML_FRAME_FP_AT_FP */
	ml_u16 ra_words; /* the return address is at CFA - 8 * ra_words */
};

#define ML_FRAME_KINDS 8
/* The caller's frame pointer is where this one points: GCC pushes it below the gap that aligns the stack. Never with ML_FRAME_SP. */
#define ML_FRAME_FP_AT_FP 0xffff

static inline __attribute__((always_inline)) ml_u32 ml_frame_kind(const struct ml_frame_rule *rule)
{
	return (ml_u32)rule->cfa & (ML_FRAME_KINDS - 1);
}

static inline __attribute__((always_inline)) ml_s32 ml_frame_cfa_offset(const struct ml_frame_rule *rule)
{
	return rule->cfa >> 3;
}

/* A set is one cache line; a rule stands anywhere in its set. Nothing is ever moved within a set. */
#define ML_FRAME_SET_SHIFT 14
#define ML_FRAME_SET_RULES 4
#define ML_FRAME_RULES (ML_FRAME_SET_RULES << ML_FRAME_SET_SHIFT)

/*
 * What a rule is found by. image: whatever tells apart times and processes in which other code may stand at one
 * address. One to one for each image.
 */
static inline __attribute__((always_inline)) ml_u64 ml_frame_hash(ml_u64 return_address, ml_u64 image)
{
	ml_u64 hash = (return_address ^ image * 0xd6e8feb86659fd93ull) * 0x9e3779b97f4a7c15ull;

	hash ^= hash >> 32;
	return hash ? hash : 1;
}

/* Number of the set's first rule. */
static inline __attribute__((always_inline)) ml_u32 ml_frame_set(ml_u64 hash)
{
	return (ml_u32)(hash & ((1u << ML_FRAME_SET_SHIFT) - 1)) * ML_FRAME_SET_RULES;
}

ML_ASSERT_SIZE(struct ml_frame_rule, 16);

#endif
