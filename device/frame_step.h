/* SPDX-License-Identifier: Apache-2.0 */
/* Steps from frame to frame by rules (frame_rule.h) outside of BPF, and their table. */
#pragma once

#include "frame_rule.h"
#include "signature.h"

/* The registers when the callee has returned. */
struct ml_frame {
	ml_u64 return_address, sp, fp;
	ml_u64 fp_slot; /* the address that fp was read from, 0 = it is still the register */
};

/* Reads a word of the stack; 0 if it cannot. is_fp: it is a saved frame pointer. */
typedef int ml_frame_reader(void *context, ml_u64 address, int is_fp, ml_u64 *word);

/*
 * Steps to the caller. low: the stack below it is dead, usually frame->sp. Returns 0 if a word is unreadable or the
 * rule does not lead to an outer frame, as every correct rule does.
 */
static inline __attribute__((always_inline)) int ml_frame_step(struct ml_frame *frame, const struct ml_frame_rule *rule,
							       ml_u64 low, ml_u64 signature_mask, ml_frame_reader *read,
							       void *context)
{
	ml_u32 kind = ml_frame_kind(rule);
	ml_u64 cfa = (kind == ML_FRAME_SP ? frame->sp : frame->fp) + (ml_u64)(long long)ml_frame_cfa_offset(rule);
	ml_u64 fp_slot, return_slot, fp = frame->fp, return_address;

	if (kind < ML_FRAME_SP || (kind == ML_FRAME_FP_DEREF && !read(context, cfa, 0, &cfa)))
		return 0;
	return_slot = cfa - 8ull * rule->ra_words;
	fp_slot = rule->fp_words == ML_FRAME_FP_AT_FP ? frame->fp : cfa - 8ull * rule->fp_words;
	if (cfa < frame->sp || cfa <= low || return_slot < low || fp_slot < low ||
	    (rule->fp_words && !read(context, fp_slot, 1, &fp)) || !read(context, return_slot, 0, &return_address))
		return 0;
	*frame = (struct ml_frame){ ml_strip_signature(return_address, signature_mask), cfa, fp,
				    rule->fp_words ? fp_slot : frame->fp_slot };
	return 1;
}

static inline const struct ml_frame_rule *ml_frame_find(const struct ml_frame_rule *rules, ml_u64 hash)
{
	const struct ml_frame_rule *set = &rules[ml_frame_set(hash)];

	for (int i = 0; i < ML_FRAME_SET_RULES; i++)
		if (__atomic_load_n(&set[i].hash, __ATOMIC_ACQUIRE) == hash)
			return &set[i];
	return 0;
}

/*
 * Adds a rule that is not in the table. Readers run concurrently, so `hash` is written last. One writer only. Returns the
 * rule's index, -1 if its set is full.
 */
static inline ml_s32 ml_frame_add(struct ml_frame_rule *rules, const struct ml_frame_rule *rule)
{
	ml_u32 first = ml_frame_set(rule->hash);

	for (ml_u32 i = first; i < first + ML_FRAME_SET_RULES; i++) {
		if (rules[i].hash)
			continue;
		rules[i].cfa = rule->cfa;
		rules[i].fp_words = rule->fp_words;
		rules[i].ra_words = rule->ra_words;
		__atomic_store_n(&rules[i].hash, rule->hash, __ATOMIC_RELEASE);
		return (ml_s32)i;
	}
	return -1;
}
