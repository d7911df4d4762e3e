/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walks that were made before. The place of each return address follows from the return addresses below it, and from
 * the frame pointer where a rule takes it: when the same ones stand in the same places, by induction it is the same
 * stack, and comparing costs a fraction of looking each rule up.
 */
#ifndef MEMLEAK_FRAME_MEMO_BPF_H
#define MEMLEAK_FRAME_MEMO_BPF_H

#include "frame_walk.bpf.h"

#define ML_MEMO_SETS 1024 /* power of two */
#define ML_MEMO_WAYS 4
/* Places beyond the window, behind large local arrays: seen through windows of their own. */
#define ML_MEMO_FAR 8

struct ml_memo {
	ml_u64 version;   /* odd: being written */
	ml_u64 key;       /* process, image and all return addresses */
	ml_u64 first;     /* what stands in the first place: most others differ there */
	ml_u64 fp_place;  /* as in struct ml_walk; */
	ml_u64 fp_offset;
	ml_u32 has_fp;    /* 0 = the frame pointer took no part */
	ml_u32 state;     /* how the walk ended: enum ml_walk_state */
	ml_u32 n_places;
	ml_u16 places[ML_MEMO_PLACES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ML_MEMO_SETS * ML_MEMO_WAYS);
	__type(key, ml_u32);
	__type(value, struct ml_memo);
} memos SEC(".maps");

/* walk->key: of the innermost return address; its bits are mixed well. */
static __always_inline ml_u32 ml_memo_set(const struct ml_walk *walk, ml_u64 above)
{
	return (ml_u32)(ml_mix(walk->key, above) >> 32) % ML_MEMO_SETS * ML_MEMO_WAYS;
}

static __always_inline ml_u64 ml_memo_word(const struct ml_walk *walk, ml_u32 place)
{
	return walk->words[place & (ML_WINDOW_WORDS - 1)];
}

/* Does the frame pointer that took part stand where it stood? Behind the window's bytes are those of another stack. */
static __always_inline bool ml_memo_has_fp(const struct ml_walk *walk, const struct ml_memo *memo)
{
	ml_u64 place = memo->fp_place, fp = walk->fp;

	if (!memo->has_fp)
		return true;
	if (place != ML_FP_REGISTER) {
		if (8 * place >= walk->window_bytes)
			return false;
		fp = ml_memo_word(walk, (ml_u32)place);
	}
	return fp - walk->begin == memo->fp_offset;
}

/* The key of the words in the memo's places; 0 when one cannot be read. Global: verified by itself. */
__noinline ml_u64 ml_memo_key(struct ml_walk *walk, const struct ml_memo *memo)
{
	ml_u64 key;
	ml_u32 n;

	if (!walk || !memo)
		return 0;
	key = walk->key;
	n = memo->n_places;
	for (ml_u32 i = 0; i < ML_MEMO_PLACES && i < n; i++) {
		ml_u64 address = walk->begin + 8ull * memo->places[i];

		if (address - walk->window >= walk->window_bytes && ml_open_window(walk, address))
			return 0;
		key = ml_mix(key, ml_word(walk, address));
	}
	return key;
}

/* Is the stack in the window the memo's? Then walk->key is its key; returns how its walk ended, else ML_WALK_ON. */
static __always_inline enum ml_walk_state ml_memo_fits(struct ml_walk *walk, const struct ml_memo *memo)
{
	ml_u64 version = *(volatile const ml_u64 *)&memo->version;
	ml_u64 key = *(volatile const ml_u64 *)&memo->key;
	ml_u32 state = *(volatile const ml_u32 *)&memo->state;

	if (version & 1 || !memo->n_places || memo->first != ml_memo_word(walk, memo->places[0]) ||
	    !ml_memo_has_fp(walk, memo) || ml_memo_key(walk, memo) != key ||
	    *(volatile const ml_u64 *)&memo->version != version)
		return ML_WALK_ON;
	walk->key = key;
	return state;
}

/*
 * How a walk from here has ended before, ML_WALK_ON when none is known. Reads as much of the stack as the thread's last
 * walk needed; what cannot be read is left to the walk.
 */
static __always_inline enum ml_walk_state ml_recall(struct ml_walk *walk, ml_u64 above)
{
	ml_u32 number = ml_memo_set(walk, above);

	walk->begin = walk->sp;
	if (walk->n_pending || !walk->span || ml_open_window(walk, walk->sp))
		return ML_WALK_ON;
	for (ml_u32 way = 0; way < ML_MEMO_WAYS && walk->window == walk->begin; way++, number++) {
		const struct ml_memo *memo = bpf_map_lookup_elem(&memos, &number);
		enum ml_walk_state state = memo ? ml_memo_fits(walk, memo) : ML_WALK_ON;

		if (state != ML_WALK_ON)
			return state;
	}
	return ML_WALK_ON;
}

/* All but the last few places are near; they are in order. */
static __always_inline bool ml_can_remember(const struct ml_walk *walk)
{
	ml_u32 n = walk->n_places;

	if (walk->n_pending || walk->n_fp_sources > 1 || !n || n > ML_MEMO_PLACES)
		return false;
	if (walk->n_fp_sources && walk->fp_place != ML_FP_REGISTER && walk->fp_place >= ML_WINDOW_WORDS)
		return false;
	return walk->places[0] < ML_WINDOW_WORDS &&
	       (n <= ML_MEMO_FAR || walk->places[(n - ML_MEMO_FAR - 1) & (ML_MEMO_PLACES - 1)] < ML_WINDOW_WORDS);
}

/* Keeps a walk in place of another of its set; `number` is the set's first. */
static __noinline int ml_remember(struct ml_walk *walk, ml_u32 number, ml_u32 state)
{
	struct ml_memo *memo;
	ml_u64 version;

	number += (ml_u32)(walk->key >> 8) % ML_MEMO_WAYS;
	memo = bpf_map_lookup_elem(&memos, &number);
	if (!memo || !ml_can_remember(walk))
		return 0;
	version = memo->version & ~1ull;
	if (__sync_val_compare_and_swap(&memo->version, version, version + 1) != version)
		return 0;
	memo->key = walk->key;
	memo->state = state;
	memo->n_places = walk->n_places;
	memo->has_fp = walk->n_fp_sources;
	memo->fp_place = walk->fp_place;
	memo->fp_offset = walk->fp_offset;
	memo->first = walk->first;
	__builtin_memcpy(memo->places, walk->places, sizeof(memo->places));
	__sync_fetch_and_add(&memo->version, 1);
	return 0;
}

/* A walk, remembered or made. Ended: walk->key covers all return addresses; else see ml_walk(). */
static __always_inline enum ml_walk_state ml_walk_or_recall(struct ml_walk *walk, ml_u64 above)
{
	ml_u32 number = ml_memo_set(walk, above);
	enum ml_walk_state state = ml_recall(walk, above);

	if (state != ML_WALK_ON)
		return state;
	state = ml_walk(walk);
	if (state == ML_WALK_ENDED || state == ML_WALK_LIMIT)
		ml_remember(walk, number, state);
	return state;
}

#endif
