/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Walks from frame to frame by the agent's rules (frame_rule.h), for a key of exactly the whole stack. */
#pragma once

#include "images.bpf.h"

/* Frames for each call of the verified function, and in all. */
#define ML_WALK_STEPS 8
#define ML_WALK_FRAMES 128

ML_MAP(ARRAY, frame_rules, ml_u32, struct ml_bpf_rule_set, 1u << ML_FRAME_SET_SHIFT, BPF_F_MMAPABLE);

enum ml_walk_state {
	ML_WALK_ON = 0,
	ML_WALK_ENDED = 1, /* at the outermost frame */
	ML_WALK_STUCK = 2, /* no rule is possible here, or the stack contradicts it */
	ML_WALK_UNKNOWN = 3, /* no rule yet */
	ML_WALK_LIMIT = 4,   /* the next frame is beyond a slice */
};

/* Reads the second word of a rule, unless its first has changed: the agent may be replacing it. */
static __always_inline bool ml_read_rule(const struct ml_frame_rule *from, ml_u64 hash, struct ml_frame_rule *rule)
{
	ml_u64 what = *(const volatile ml_u64 *)&from->cfa;

	rule->cfa = (ml_s32)what;
	rule->fp_words = (ml_u16)(what >> 32);
	rule->ra_words = (ml_u16)(what >> 48);
	return *(const volatile ml_u64 *)&from->hash == hash;
}

/* Finds a rule by its hash; false if there is none yet. */
static __always_inline bool ml_find_rule(ml_u64 hash, struct ml_frame_rule *rule)
{
	ml_u32 set = ml_frame_set(hash) / ML_FRAME_SET_RULES;
	struct ml_bpf_rule_set *rules = bpf_map_lookup_elem(&frame_rules, &set);

	if (!rules)
		return false;
#pragma unroll
	for (int i = 0; i < ML_FRAME_SET_RULES; i++)
		if (rules->rules[i].hash == hash)
			return ml_read_rule(&rules->rules[i], hash, rule);
	return false;
}

/*
 * Reads the words from an address on, as many as the thread's last walk needed, since each read of the target's memory
 * costs as much as a kilobyte. Ends at the last readable page.
 */
static __noinline long ml_open_window(struct ml_walk *walk, ml_u64 address)
{
	ml_u64 bytes;

	if (!walk)
		return -1;
	bytes = walk->begin + walk->span - address;
	if (bytes > sizeof(walk->words))
		bytes = sizeof(walk->words);
	if (bytes < ML_WINDOW_LEAST)
		bytes = ML_WINDOW_LEAST;
	walk->window = address;
	walk->window_bytes = bytes;
	if (!bpf_probe_read_user(walk->words, (ml_u32)bytes, (const void *)address))
		return 0;
	bytes = -address & (ML_PAGE_BYTES - 1);
	if (bytes > sizeof(walk->words))
		return -1;
	walk->window_bytes = bytes;
	return bpf_probe_read_user(walk->words, (ml_u32)bytes, (const void *)address);
}

/* The return address of a frame, in place of that of a pending return probe. */
__noinline ml_u64 ml_original_return(ml_u64 hidden_at, ml_u64 found)
{
	struct ml_thread *thread = ml_known_thread();

	if (!thread)
		return found;
	for (ml_u32 i = 0; i < ML_PENDING && i < thread->depth; i++)
		if (thread->pending[i].sp == hidden_at)
			return thread->pending[i].return_address;
	return found;
}

/* The state of a step, in registers. */
struct ml_frame {
	ml_u64 return_address;
	ml_u64 sp;
	ml_u64 fp;
	ml_u64 fp_offset; /* where it was read, in words from the walk's beginning; ML_FP_REGISTER */
	ml_u64 key;
};

#define ML_FP_REGISTER 0xffffull

/* Makes sure that the words from low to high are in the window, which else is read anew from low on. */
static __always_inline bool ml_load_words(struct ml_walk *walk, ml_u64 low, ml_u64 high)
{
	if (low >= walk->window && high - walk->window < walk->window_bytes)
		return true;
	return !ml_open_window(walk, low) && high - low < walk->window_bytes;
}

static __always_inline ml_u64 ml_word(const struct ml_walk *walk, ml_u64 address)
{
	return walk->words[(address - walk->window) >> 3 & (ML_WINDOW_WORDS - 1)];
}

/* Notes a word that the walk has used. */
static __always_inline void ml_note(struct ml_walk *walk, ml_u64 offset, ml_u64 word)
{
	ml_u32 n = walk->n_offsets++ & (ML_WALK_WORDS - 1);
	ml_u64 n_words = (offset & (ML_BPF_OFFSET_OF_ADDRESS - 1)) + 1;

	if (walk->n_words < n_words)
		walk->n_words = n_words;
	walk->offsets[n] = (ml_u16)offset;
	walk->read[n] = word;
}

static __always_inline void ml_note_address(struct ml_walk *walk, ml_u64 offset, ml_u64 word)
{
	ml_note(walk, offset | ML_BPF_OFFSET_OF_ADDRESS, word);
}

/* Notes the frame pointer if a frame was found by it. */
static __always_inline void ml_note_fp(struct ml_walk *walk, const struct ml_frame *frame)
{
	if (frame->fp_offset == ML_FP_REGISTER)
		walk->uses_fp = 1;
	else
		ml_note_address(walk, frame->fp_offset, frame->fp);
}

/* The canonical frame address by the rule, or 0. */
static __always_inline ml_u64 ml_frame_address(struct ml_walk *walk, const struct ml_frame *frame,
					       const struct ml_frame_rule *rule)
{
	ml_u32 kind = ml_frame_kind(rule);
	ml_u64 offset = (ml_u64)(long long)ml_frame_cfa_offset(rule);
	ml_u64 slot = frame->fp + offset, cfa;

	if (kind == ML_FRAME_SP)
		return frame->sp + offset;
	if (kind != ML_FRAME_FP && kind != ML_FRAME_FP_DEREF)
		return 0;
	ml_note_fp(walk, frame);
	if (kind == ML_FRAME_FP)
		return slot;
	if (slot - frame->sp >= walk->limit - frame->sp || slot & 7 || !ml_load_words(walk, slot, slot))
		return 0;
	cfa = ml_word(walk, slot);
	ml_note_address(walk, (slot - walk->begin) >> 3, cfa);
	return cfa;
}

/* The slot of the caller's frame pointer; if that is still in the register, of the return address. */
static __always_inline ml_u64 ml_fp_slot(const struct ml_frame *frame, const struct ml_frame_rule *rule, ml_u64 cfa)
{
	if (rule->fp_words == ML_FRAME_FP_AT_FP)
		return frame->fp;
	return cfa - 8ull * (rule->fp_words ? rule->fp_words : rule->ra_words);
}

/* Steps to the caller's frame. */
static __always_inline enum ml_walk_state ml_step(struct ml_walk *walk, struct ml_frame *frame)
{
	struct ml_frame_rule rule;
	ml_u64 cfa, slot, fp_slot;

	if (!ml_find_rule(ml_frame_hash(frame->return_address, walk->image), &rule))
		return ML_WALK_UNKNOWN;
	if (ml_frame_kind(&rule) == ML_FRAME_END)
		return ML_WALK_ENDED;
	cfa = ml_frame_address(walk, frame, &rule);
	slot = cfa - 8ull * rule.ra_words;
	fp_slot = ml_fp_slot(frame, &rule, cfa);
	if (cfa <= frame->sp || (cfa | fp_slot) & 7 || fp_slot - frame->sp >= cfa - frame->sp || slot < frame->sp)
		return ML_WALK_STUCK;
	if (cfa > walk->limit)
		return ML_WALK_LIMIT;
	if (!ml_load_words(walk, fp_slot < slot ? fp_slot : slot, fp_slot < slot ? slot : fp_slot))
		return ML_WALK_STUCK;
	if (rule.fp_words) {
		frame->fp = ml_word(walk, fp_slot);
		frame->fp_offset = (fp_slot - walk->begin) >> 3;
	}
	frame->return_address = ml_strip_signature(ml_word(walk, slot), ML_SIGNATURE_MASK);
	if (walk->n_pending)
		frame->return_address = ml_original_return(ML_HIDDEN_AT(slot, cfa), frame->return_address);
	ml_note(walk, (slot - walk->begin) >> 3, frame->return_address);
	frame->sp = cfa;
	frame->key = ml_mix(frame->key, frame->return_address);
	return ML_WALK_ON;
}

/* ML_WALK_STEPS frames. Global, so that the verifier checks it once. Returns enum ml_walk_state. */
__noinline int ml_walk_on(struct ml_walk *walk)
{
	struct ml_frame frame;
	int state = ML_WALK_ON;

	if (!walk)
		return ML_WALK_STUCK;
	frame = (struct ml_frame){ walk->return_address, walk->sp, walk->fp, walk->fp_offset, walk->key };
	for (int i = 0; i < ML_WALK_STEPS && state == ML_WALK_ON; i++)
		state = ml_step(walk, &frame);
	walk->return_address = frame.return_address;
	walk->sp = frame.sp;
	walk->fp = frame.fp;
	walk->fp_offset = frame.fp_offset;
	walk->key = frame.key;
	return state;
}

/* The initial key: process, image (see ml_image()) and innermost return address. */
static __always_inline ml_u64 ml_walk_seed(const struct ml_thread *thread, ml_u64 return_address)
{
	return ml_mix(thread->seed, return_address);
}

/* The stack key of a walk. above: distinguishes stacks that go on beyond the limit. */
static __always_inline ml_u64 ml_key_of_walk(ml_u64 key, enum ml_walk_state state, ml_u64 above)
{
	if (state == ML_WALK_LIMIT)
		return ml_mix(key, above) | 1;
	return key ? key : 1;
}

static __always_inline ml_u64 ml_flags_of_walk(enum ml_walk_state state)
{
	return state == ML_WALK_ENDED ? ML_BPF_KEY_EXACT : ML_KEY_PARTIAL;
}

/* Walks to the outermost frame, where the key is exact. Otherwise the rest of the stack begins at walk->sp. */
static __always_inline enum ml_walk_state ml_walk(struct ml_walk *walk)
{
	int state = ML_WALK_ON;

	walk->window_bytes = 0;
	walk->begin = walk->sp;
	walk->n_offsets = walk->n_words = 0;
	walk->uses_fp = 0;
	walk->fp_offset = ML_FP_REGISTER;
	for (int i = 0; i < ML_WALK_FRAMES / ML_WALK_STEPS && state == ML_WALK_ON; i++)
		state = ml_walk_on(walk);
	walk->span = walk->sp - walk->begin;
	return state;
}
