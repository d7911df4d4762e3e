/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walks that were made before. The place of each return address follows from the return addresses below it, and from
 * the frame pointers where rules take them: when the same ones stand in the same places, by induction it is the same
 * stack, and comparing costs a fraction of looking each rule up.
 */
#ifndef MEMLEAK_FRAME_MEMO_BPF_H
#define MEMLEAK_FRAME_MEMO_BPF_H

#include "frame_walk.bpf.h"

#define ML_MEMO_SETS 1024 /* power of two */
#define ML_MEMO_WAYS 4
/* Looks into the target's memory that are worth it: more, and looking the rules up is not what costs most. */
#define ML_MEMO_WINDOWS 8

struct ml_memo {
	ml_u64 version;   /* odd: being written */
	ml_u64 key;       /* process, image and all return addresses */
	ml_u64 first;     /* what stands in the first place: most others differ there */
	ml_u64 frames;    /* as in struct ml_walk */
	ml_u64 fp;        /* the register, as its distance from sp, where uses_fp */
	ml_u32 uses_fp;
	ml_u32 state;     /* how the walk ended: enum ml_walk_state */
	ml_u32 n_places;
	ml_u16 places[ML_WALK_PLACES];
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

/* A quick first test: what is behind the window's bytes is of another stack. */
static __always_inline bool ml_memo_begins(const struct ml_walk *walk, const struct ml_memo *memo)
{
	return memo->n_places && memo->first == ML_CODE_ADDRESS(walk->words[memo->places[0] & (ML_WINDOW_WORDS - 1)]) &&
	       (!memo->uses_fp || walk->fp - walk->begin == memo->fp);
}

/*
 * The key of the words in the memo's places, 0 when one cannot be read; walk->frames is then that of the addresses
 * among them. Global: verified by itself.
 */
__noinline ml_u64 ml_memo_key(struct ml_walk *walk, const struct ml_memo *memo)
{
	ml_u64 key, frames = 0;
	ml_u32 n;

	if (!walk || !memo)
		return 0;
	key = walk->key;
	n = memo->n_places;
	for (ml_u32 i = 0; i < ML_WALK_PLACES && i < n; i++) {
		ml_u32 place = memo->places[i];
		ml_u64 address = walk->begin + 8ull * (place & (ML_BPF_PLACE_FRAME - 1));

		if (address - walk->window >= walk->window_bytes && ml_open_window(walk, address))
			return 0;
		if (place & ML_BPF_PLACE_FRAME)
			frames = ml_mix(frames, ml_word(walk, address) - walk->begin);
		else
			key = ml_mix(key, ML_CODE_ADDRESS(ml_word(walk, address)));
	}
	walk->frames = frames;
	return key;
}

/* Is the stack in the window the memo's? Then walk->key is its key; returns how its walk ended, else ML_WALK_ON. */
static __always_inline enum ml_walk_state ml_memo_fits(struct ml_walk *walk, const struct ml_memo *memo)
{
	ml_u64 version = *(volatile const ml_u64 *)&memo->version;
	ml_u64 key = *(volatile const ml_u64 *)&memo->key;
	ml_u32 state = *(volatile const ml_u32 *)&memo->state;

	if (version & 1 || !ml_memo_begins(walk, memo) || ml_memo_key(walk, memo) != key ||
	    walk->frames != memo->frames || *(volatile const ml_u64 *)&memo->version != version)
		return ML_WALK_ON;
	walk->key = key;
	walk->is_recalled = 1;
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

static __always_inline bool ml_can_remember(const struct ml_walk *walk)
{
	return !walk->n_pending && walk->n_places && walk->n_places <= ML_WALK_PLACES &&
	       walk->n_windows <= ML_MEMO_WINDOWS && walk->places[0] < ML_WINDOW_WORDS;
}

/* Keeps a walk in place of another of its set; `number` is the set's first, fp the frame pointer it began with. */
static __noinline int ml_remember(struct ml_walk *walk, ml_u64 fp, ml_u32 number, ml_u32 state)
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
	memo->n_places = (ml_u32)walk->n_places;
	memo->uses_fp = walk->uses_fp;
	memo->fp = fp - walk->begin;
	memo->frames = walk->frames;
	memo->first = ML_CODE_ADDRESS(walk->read[0]);
	__builtin_memcpy(memo->places, walk->places, sizeof(memo->places));
	__sync_fetch_and_add(&memo->version, 1);
	return 0;
}

/* A walk, remembered or made. Ended: walk->key covers all return addresses; else see ml_walk(). */
static __always_inline enum ml_walk_state ml_walk_or_recall(struct ml_walk *walk, ml_u64 above)
{
	ml_u32 number = ml_memo_set(walk, above);
	enum ml_walk_state state = ml_recall(walk, above);
	ml_u64 fp = walk->fp;

	if (state != ML_WALK_ON)
		return state;
	state = ml_walk(walk);
	if (state == ML_WALK_ENDED || state == ML_WALK_LIMIT)
		ml_remember(walk, fp, number, state);
	return state;
}

#endif
