/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * Frame rules step from a return address to the caller's, for stack keys on the target. A rule is the DWARF CFI row at
 * the return address, if it has a usual shape. For the BPF programs the agent learns the rules from its evidence
 * (agent/probes/frames.c) and writes them into a table; the shim reads them from its own process when it first needs one
 * (preload/stacks/frame_resolve.c).
 * An address without a rule makes the key less precise (more of the stack is hashed), never wrong.
 */
#pragma once

#include "wire.h"

enum ml_frame_kind {
	ML_FRAME_NONE = 1,     /* the CFI has no rule of these shapes */
	ML_FRAME_END = 2,      /* the outermost frame: its return address is undefined */
	ML_FRAME_SP = 3,       /* CFA = sp + cfa_offset */
	ML_FRAME_FP = 4,       /* CFA = frame pointer + cfa_offset */
	ML_FRAME_FP_DEREF = 5, /* CFA = *(frame pointer + cfa_offset): functions that align their stack */
};

/*
 * sp and fp: their values after the callee has returned. The caller's sp is the CFA (psABI x86-64 §3.2.2, AAPCS64 §6.4).
 * Two words, each read at once. A rule may be replaced: after reading the second word, the reader checks that the first
 * is unchanged.
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

/* A set is one cache line; a rule may be anywhere in its set and never moves within it. */
#define ML_FRAME_SET_SHIFT 14
#define ML_FRAME_SET_RULES 4
#define ML_FRAME_RULES (ML_FRAME_SET_RULES << ML_FRAME_SET_SHIFT)

/*
 * The key of a rule. image: distinguishes the times and processes in which an address may hold other code.
 * One to one for each image.
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
